"""Where converted models are kept."""

import os
from collections.abc import Mapping
from pathlib import Path


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """`$SWIFT_CACHE_DIR`, else `$XDG_CACHE_HOME/swift-triton`, else `~/.cache/swift-triton`; nothing is created."""
    if chosen := environ.get("SWIFT_CACHE_DIR"):
        return Path(chosen).expanduser()
    if xdg := environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "swift-triton"
    return Path.home() / ".cache" / "swift-triton"
