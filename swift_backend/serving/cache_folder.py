"""Where may the launcher keep files between runs?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from swift_backend.config import default_cache_dir
from swift_backend.serving.launch_error import LaunchError


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder that converted models are kept in too, made if needed; raises LaunchError."""
    folder = default_cache_dir(environment)
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(
            f"The cache folder {folder} cannot be made: {error.strerror}. Set XDG_CACHE_HOME to a writable folder."
        ) from error
    return folder
