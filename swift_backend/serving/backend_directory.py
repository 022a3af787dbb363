"""How are the wheel's parts put together into what tritonserver expects on disk?"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

STUB = "triton_python_backend_stub"
_EXECUTABLE = 0o755


def assemble_backend(backend: Path, stub: Path, target: Path) -> Path:
    """Copies backend and stub side by side into `target`/python, once; returns `target`.

    The folder appears whole or not at all, so an interrupted or a second launch cannot see half of it.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        made = Path(scratch, target.name)
        shutil.copytree(backend, made / "python", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(stub, made / "python" / STUB)
        (made / "python" / STUB).chmod(_EXECUTABLE)
        _rename_unless_there(made, target)
    return target


def runnable_server(server: Path, folder: Path) -> Path:
    """The server with its run bit set; where that is not allowed, a copy in `folder`."""
    if os.access(server, os.X_OK):
        return server
    try:
        server.chmod(_EXECUTABLE)
    except OSError:
        return _copied_server(server, folder)
    return server


def _copied_server(server: Path, folder: Path) -> Path:
    copy = folder / server.name
    if not copy.is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            made = Path(scratch, folder.name)
            made.mkdir()
            shutil.copy2(server, made / server.name)
            (made / server.name).chmod(_EXECUTABLE)
            _rename_unless_there(made, folder)
    return copy


def _rename_unless_there(made: Path, target: Path) -> None:
    try:
        made.rename(target)
    except OSError:
        # Another launch was faster, and what it made is the same.
        if not target.is_dir():
            raise
