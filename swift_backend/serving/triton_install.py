"""Where is a tritonserver, and what must be set so that it runs with this Python?"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from swift_backend.serving.backend_directory import STUB, assemble_backend, runnable_server
from swift_backend.serving.launch_error import LaunchError
from swift_backend.serving.libpython import libpython_folder, library_folders, needed_libpython, python_minor

CONTAINER = Path("/opt/tritonserver")


@dataclass(frozen=True, slots=True)
class TritonInstall:
    """A tritonserver that can be started.

    server: the executable. backends: what --backend-directory takes.
    library_path: folders that must lead LD_LIBRARY_PATH.
    """

    server: Path
    backends: Path
    library_path: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class TritonWheel:
    """The parts of an installed nvidia-pytriton; `version` names the assembled copy."""

    tritonserver: Path
    libraries: Path
    version: str


def find_triton(cache: Path, container: Path = CONTAINER) -> TritonInstall:
    """NVIDIA's container if this is one, else the wheel in this environment; raises LaunchError."""
    if (container / "bin" / "tritonserver").is_file():
        return container_install(container, running_minor())
    wheel = find_wheel()
    if wheel is None:
        raise LaunchError(
            "No tritonserver found, neither in /opt/tritonserver nor in this Python's packages. Run `make install`."
        )
    check_numpy(importlib.metadata.version("numpy"))
    return wheel_install(wheel, cache, running_minor())


def running_minor() -> str:
    """The running Python's version as Triton names its stubs: `3.11`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def container_install(root: Path, minor: str) -> TritonInstall:
    """NVIDIA's own layout, used as it is; raises LaunchError if its stub is for another Python."""
    stub = root / "backends" / "python" / STUB
    if not stub.is_file():
        raise LaunchError(f"{root} has no Python backend. Use an image whose tag ends in -py3.")
    wanted = python_minor(needed_libpython(stub))
    if wanted != minor:
        raise LaunchError(f"{root} runs models with Python {wanted}, but this is {minor}. Start with python{wanted}.")
    return TritonInstall(root / "bin" / "tritonserver", root / "backends", (root / "lib",))


def find_wheel() -> TritonWheel | None:
    """The nvidia-pytriton of this environment; its Python code is not imported."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(spec.submodule_search_locations[0])
    version = importlib.metadata.version("nvidia-pytriton")
    return TritonWheel(package / "tritonserver", package.parent / "nvidia_pytriton.libs", version)


def check_numpy(version: str) -> None:
    """Raises LaunchError for numpy 2: this wheel's stubs then read every tensor with strides of 0."""
    if int(version.split(".")[0]) >= 2:
        raise LaunchError(
            f"The Triton of nvidia-pytriton garbles tensors with numpy {version}. Run `make install` with Python "
            "3.10 to 3.12, or pip install 'numpy<2'."
        )


def wheel_install(wheel: TritonWheel, cache: Path, minor: str) -> TritonInstall:
    """The wheel's server beside a backend directory made in `cache` for this Python; raises LaunchError."""
    stubs = wheel.tritonserver / "python_backend_stubs"
    stub = stubs / minor / STUB
    if not stub.is_file():
        found = ", ".join(sorted((path.name for path in stubs.glob("*")), key=_by_number))
        raise LaunchError(
            f"nvidia-pytriton {wheel.version} has no stub for Python {minor}, only for {found or 'none'}. "
            "Make the environment with one of these: make install PYTHON=python3.12"
        )
    library = needed_libpython(stub)
    folder = libpython_folder(library, (wheel.libraries, *library_folders()))
    backends = assemble_backend(
        wheel.tritonserver / "backends" / "python", stub, cache / f"triton-{wheel.version}-py{minor}"
    )
    server = runnable_server(wheel.tritonserver / "bin" / "tritonserver", cache / f"triton-{wheel.version}")
    return TritonInstall(server, backends, tuple(dict.fromkeys((wheel.libraries, folder))))


def _by_number(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]
