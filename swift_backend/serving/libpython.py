"""Which libpython does a stub need, and in which folder is it?"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from swift_backend.serving.launch_error import LaunchError

_LIBRARY_NAME = re.compile(rb"libpython3[\w.-]*?\.so[\w.]*")
_MINOR = re.compile(r"libpython(3)(?:-\w+)?\.(\d+)\.so")


def needed_libpython(stub: Path) -> str:
    """The file name of the libpython that the stub is linked with; raises LaunchError if there is none."""
    match = _LIBRARY_NAME.search(stub.read_bytes())
    if match is None:
        raise LaunchError(f"{stub} is not a stub of Triton's Python backend: reinstall Triton.")
    return match.group().decode()


def python_minor(library: str) -> str:
    """`3.11` for libpython3.11.so.1.0, and for the names with a hash that wheels carry."""
    match = _MINOR.match(library)
    if match is None:
        raise LaunchError(f"{library} does not name a Python version: reinstall Triton.")
    return ".".join(match.groups())


def library_folders() -> tuple[Path, ...]:
    """Where this Python's shared library may be, most likely first."""
    libdir, multiarch = (sysconfig.get_config_var(name) or "" for name in ("LIBDIR", "MULTIARCH"))
    # Debian's own Python reports /usr/lib but keeps libpython one folder deeper.
    return (Path(libdir), Path(libdir, multiarch), Path(sys.base_prefix, "lib"), Path("/usr/lib", multiarch))


def libpython_folder(name: str, folders: Sequence[Path]) -> Path:
    """The first folder that has the library; raises LaunchError with what to install."""
    for folder in folders:
        if (folder / name).exists():
            return folder
    raise LaunchError(f"{name}, which Triton's Python backend needs, is not on this machine. {_advice(name)}")


def _advice(name: str) -> str:
    minor = python_minor(name)
    if ".pyenv" in Path(sys.base_prefix).parts:
        return f"Rebuild this Python: PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install --force {minor}"
    return f"Debian and Ubuntu: apt-get install libpython{minor}; elsewhere use a Python built with --enable-shared."
