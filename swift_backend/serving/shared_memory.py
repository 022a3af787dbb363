"""Which files in shared memory belong to one launch?"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from swift_backend.serving.preflight import SHARED_MEMORY


def new_region_prefix() -> str:
    """A prefix that no other launch has; the token is for containers, where every launcher is process 1."""
    return f"swift_{os.getpid()}_{secrets.token_hex(4)}_"


def remove_regions(prefix: str, folder: Path = SHARED_MEMORY) -> list[str]:
    """Deletes what a server that could not clean up left behind; returns the names."""
    left = sorted(path for path in folder.iterdir() if path.name.startswith(prefix))
    for path in left:
        path.unlink(missing_ok=True)
    return [path.name for path in left]
