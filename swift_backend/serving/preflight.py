"""What on this machine would make the server fail, found before it starts?"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from swift_backend.serving.endpoints import Endpoints
from swift_backend.serving.launch_error import LaunchError

SHARED_MEMORY = Path("/dev/shm")
_MIB = 2**20
_SHARED_MEMORY_NEEDED = 64 * _MIB


def check_repository(folder: Path) -> None:
    """Raises LaunchError unless `folder` holds at least one Triton model."""
    if not folder.is_dir():
        raise LaunchError(f"The model repository {folder} does not exist. Name one with --model-repository.")
    if not any(folder.glob("*/config.pbtxt")):
        raise LaunchError(f"{folder} holds no model (no */config.pbtxt). Name another with --model-repository.")


def check_ports(endpoints: Endpoints) -> None:
    """Raises LaunchError for a port that is taken, named twice, or not ours to use."""
    seen: dict[int, str] = {}
    for kind in ("http", "grpc", "metrics"):
        port = getattr(endpoints, f"{kind}_port")
        if port in seen:
            raise LaunchError(f"Port {port} is named for {seen[port]} and for {kind}. {_other_port(kind)}")
        seen[port] = kind
        _check_port(endpoints.host, port, kind)


def check_shared_memory(folder: Path = SHARED_MEMORY) -> None:
    """Raises LaunchError if the shared memory has too little room for Triton's stubs."""
    try:
        room = os.statvfs(folder)
    except OSError as error:
        raise LaunchError(f"There is no shared memory at {folder}. Mount a tmpfs there.") from error
    free = room.f_bavail * room.f_frsize
    if free < _SHARED_MEMORY_NEEDED:
        raise LaunchError(
            f"{folder} has {free // _MIB} MiB free and Triton needs {_SHARED_MEMORY_NEEDED // _MIB}. Delete what is "
            "left over there, or give the container more: docker run --shm-size=1g"
        )


def _check_port(host: str, port: int, kind: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As Triton does: connections of an earlier run that linger in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            raise LaunchError(_port_trouble(host, port, kind, error)) from error


def _port_trouble(host: str, port: int, kind: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"The {kind} port {port} is taken by another process. {_other_port(kind)}"
    if error.errno == errno.EACCES:
        return f"The {kind} port {port} is reserved for root. {_other_port(kind)}"
    return f"The host {host} is not an address of this machine ({error.strerror}). Use --host 0.0.0.0 or 127.0.0.1."


def _other_port(kind: str) -> str:
    return f"Choose another: make serve {kind.upper()}_PORT=…, or --{kind}-port …"
