"""With which arguments and in which environment is tritonserver started?"""

from __future__ import annotations

import math
import os
import site
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from swift_backend.serving.endpoints import Endpoints
from swift_backend.serving.triton_install import TritonInstall

PROJECT_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """Everything that decides how a server runs.

    environment: added to the caller's, SWIFT_MODEL for one. arguments: given to tritonserver as they are.
    exit_timeout: seconds that a stop may take before the server is killed.
    """

    install: TritonInstall
    model_repository: Path
    endpoints: Endpoints
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    exit_timeout: float = 15.0


def command_line(spec: ServerSpec, region_prefix: str) -> list[str]:
    """The program and its arguments; the caller's own come last, so that they win."""
    at = spec.endpoints
    return [
        str(spec.install.server),
        f"--model-repository={spec.model_repository}",
        f"--backend-directory={spec.install.backends}",
        f"--backend-config=python,shm-region-prefix-name={region_prefix}",
        f"--http-address={at.host}",
        f"--http-port={at.http_port}",
        f"--grpc-address={at.host}",
        f"--grpc-port={at.grpc_port}",
        f"--metrics-address={at.host}",
        f"--metrics-port={at.metrics_port}",
        f"--exit-timeout-secs={max(1, math.ceil(spec.exit_timeout))}",
        *spec.arguments,
    ]


def server_environment(spec: ServerSpec, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with what the server, its stubs and our models need.

    A stub is told twice which packages to use. PATH: stubs for Python 3.11 and newer ignore PYTHONPATH, but find
    this environment through the first python3 on the PATH. PYTHONPATH: for all others, and for the project itself.
    """
    packages = [*site.getsitepackages(), str(PROJECT_ROOT)]
    # Not resolved: the link in the environment's own bin folder is what makes it an environment.
    programs = os.path.dirname(os.path.abspath(sys.executable))
    added = {
        "PATH": [programs],
        "PYTHONPATH": packages,
        "LD_LIBRARY_PATH": [str(folder) for folder in spec.install.library_path],
    }
    lists = {name: _before(folders, base.get(name, "")) for name, folders in added.items()}
    return {**base, **lists, **spec.environment}


def _before(folders: list[str], existing: str) -> str:
    return os.pathsep.join([*folders, *([existing] if existing else [])])
