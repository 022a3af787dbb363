"""Which processes and files does a server have?"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

STUB = "triton_python_backend_stub"
WATCH = "dead_stub_watch.py"


def stubs(server: int, model: str = "swift_") -> list[psutil.Process]:
    """The server's living stubs of models whose name begins so."""
    children = psutil.Process(server).children(recursive=True)
    return [child for child in children if _is_stub(child, model)]


def is_gone(process: psutil.Process) -> bool:
    """Whether it runs no more; one that only waits for its parent is gone."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def regions(server: int) -> list[str]:
    """Triton's files in shared memory that belong to the server."""
    lines = Path(f"/proc/{server}/maps").read_text().splitlines()
    return sorted({line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/swift_" in line})


def within(seconds: float, happened: Callable[[], object]) -> float:
    """Wait until it happened, and say after how many seconds; fails when it took too long."""
    started = time.monotonic()
    while not happened():
        assert time.monotonic() - started < seconds, f"did not happen within {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - started


def _is_stub(process: psutil.Process, model: str) -> bool:
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return False
    return bool(arguments) and arguments[0].endswith(STUB) and f"/{model}" in arguments[1]
