"""Processes that stand in for a tritonserver and its stub: only these may be watched, signalled and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Does what its command line says, and closes its door when it is told to.
PROGRAM = """
import mmap, signal, socket, sys, time
options = [argument.lstrip("-").partition("=")[::2] for argument in sys.argv[1:]]
files = [open(value, "r+b") for name, value in options if name == "map"]
maps = [mmap.mmap(file.fileno(), 0) for file in files]
doors = [socket.create_server(("127.0.0.1", int(value))) for name, value in options if name.endswith("-port")]
if ("deaf", "") in options:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
sys.stdin.readline()
for door in doors:
    door.close()
time.sleep(60)
"""


class StandIns:
    """Makes processes, and ends those that are left."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def server(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A process with this command line, e.g. --http-port=8000, --deaf or --map=FILE; ready when this returns."""
        process = self.run([sys.executable, "-IS", "-c", PROGRAM, *arguments])
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        return process

    def stub(self) -> subprocess.Popen[bytes]:
        """A process that does nothing."""
        return self.run(["sleep", "60"])

    def run(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **options})
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()


@contextlib.contextmanager
def shared_files(*names: str) -> Iterator[tuple[str, list[Path]]]:
    """Files in /dev/shm whose names begin with a prefix of our own, but for those in capitals; and the prefix."""
    prefix = f"swift_test_{os.getpid()}_{uuid.uuid4().hex[:8]}_"
    files = [Path("/dev/shm", (f"other_{prefix}" if name.isupper() else prefix) + name) for name in names]
    for file in files:
        file.write_bytes(bytes(4096))
    try:
        yield prefix, files
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def ended_by(process: subprocess.Popen[bytes], seconds: float = 5) -> int:
    """The signal that has ended it; fails if none does in time."""
    return -process.wait(seconds)


def within(seconds: float, happened: Callable[[], object]) -> float:
    """Wait until it happened, and say after how many seconds; fails when it took too long."""
    started = time.monotonic()
    while not happened():
        assert time.monotonic() - started < seconds, f"did not happen within {seconds} s"
        time.sleep(0.01)
    return time.monotonic() - started


KILLED, TERMINATED = int(signal.SIGKILL), int(signal.SIGTERM)
