"""Watches over a tritonserver and one of its stubs: NAME SERVER_ID STUB_ID REGION.

Run as a file, not imported, with pipes from and to the stub as standard input and output. It makes up for what Triton
(seen in 2.51) leaves undone, where requests would hang and processes stay for ever:

the stub has died      Triton says it is ready, and neither the open requests nor the server itself end: SIGKILL to it
b"stop" from the stub  the engine has failed: SIGTERM to the server, and SIGKILL if it does not end in time
the server is stopping the stub is not told before all requests have ended: so it is told here, b"stopping SECONDS\\n",
                       and SIGKILL ends a server that is there long after its own time limit
                       (not told of a stop within the first quarter of a second after it began to listen)
the server has died    its stubs stay: SIGKILL to the stub
b"bye" from the stub   the model was unloaded: nothing to do any more
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

LOOK_SECONDS = 1.0
# Until the server has opened its doors, which it does one after the other, …
FIRST_LOOK_SECONDS = 0.25
OPENING_SECONDS = 5.0
# … while one seems to be closed, …
NEXT_LOOK_SECONDS = 0.1
LOOKS = 4
# … and for the tables of all connections, whose reading takes 10 ms: in between it is enough that sockets are open.
TABLES_SECONDS = 5.0
# A server that ends by itself has so long to do it …
GRACE_SECONDS = 1.0
# … and so much longer than it allows itself.
PATIENCE_SECONDS = 5.0
DEFAULT_EXIT_SECONDS = 30.0
DEFAULT_PORTS = {"http-port": 8000, "grpc-port": 8001}

_SHARED_MEMORY = "/dev/shm/"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_LISTENING = "0A"


class Process:
    """A process that is not ours, told by its start time from a later one with the same id."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._birth = _birth(pid)

    @property
    def alive(self) -> bool:
        """Whether it still runs; where that cannot be told now, it does."""
        try:
            return self._birth is not None and _birth(self.pid) == self._birth
        except OSError:
            return True

    def signal(self, number: int) -> None:
        """Send it a signal, if it is there."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, seconds: float) -> bool:
        """Wait for its end; False when that took too long."""
        deadline = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


class Watch:
    """What is known of the two processes; run() stays until there is nothing left to watch."""

    def __init__(self, name: str, server: int, stub: int, region: str) -> None:
        self._name = name
        self._server, self._stub = Process(server), Process(stub)
        self._region = region
        arguments = _arguments(server)
        self._exit_seconds = float(option(arguments, "exit-timeout-secs", DEFAULT_EXIT_SECONDS))
        self._ports = {int(float(option(arguments, key, port))) for key, port in DEFAULT_PORTS.items()}
        self._doors: set[str] = set()
        self._missed: dict[str, int] = {}
        self._tables_at = 0.0
        self._opened_at = float("inf")
        self._kill_at = float("inf")

    def run(self) -> None:
        """See the module's docstring."""
        while not select.select([sys.stdin], [], [], self._pause)[0]:
            if not self._server.alive:
                self._say("the server has died, so this process ends too")
                self._stub.signal(signal.SIGKILL)
                self._remove([])
                return
            self._look_at_doors()
        word = os.read(sys.stdin.fileno(), 16)
        if word != b"bye":
            self._end_server(polite=word == b"stop")
            if not self._server.alive:
                self._stub.signal(signal.SIGKILL)

    @property
    def _pause(self) -> float:
        if self._missed:
            return NEXT_LOOK_SECONDS
        return FIRST_LOOK_SECONDS if self._opening else LOOK_SECONDS

    @property
    def _opening(self) -> bool:
        """Whether there may be a door that we have not seen yet; the one that closes first could be it."""
        return time.monotonic() < self._opened_at + OPENING_SECONDS

    def _look_at_doors(self) -> None:
        """A server that is stopping begins by closing the sockets that it listens on."""
        if self._kill_at == float("inf"):
            if self._sockets_are_open():
                return
            now = time.monotonic()
            self._tables_at = now + TABLES_SECONDS
            doors = _listening(self._server.pid, self._ports)
            if doors is None:
                return
            if doors - self._doors:
                self._opened_at = now
            # Several looks, since the kernel's tables may lack a line while connections come and go.
            self._missed = {door: self._missed.get(door, 0) + 1 for door in self._doors - doors}
            if max(self._missed.values(), default=0) >= LOOKS:
                self._kill_at = time.monotonic() + self._exit_seconds + PATIENCE_SECONDS
                with contextlib.suppress(OSError):
                    os.write(sys.stdout.fileno(), f"stopping {self._exit_seconds}\n".encode())
            self._doors |= doors
        elif time.monotonic() > self._kill_at:
            self._end_server(polite=False)

    def _sockets_are_open(self) -> bool:
        """Whether there is no need for the tables now: the doors' sockets are still the server's."""
        if self._missed or self._opening or time.monotonic() >= self._tables_at:
            return False
        with contextlib.suppress(OSError):
            return self._doors <= _sockets(self._server.pid)
        return False

    def _end_server(self, *, polite: bool) -> None:
        files = _mapped_files(self._server.pid, self._region)
        if polite:
            self._say("the engine has failed: stopping the server")
            self._server.signal(signal.SIGTERM)
        if not self._server.wait(self._exit_seconds + PATIENCE_SECONDS if polite else GRACE_SECONDS):
            self._say("killing the server, whose open requests would never end")
            self._server.signal(signal.SIGKILL)
            if not self._server.wait(PATIENCE_SECONDS):
                self._say(
                    "the server cannot be killed; as process 1 of a container it needs an init (docker run --init)"
                )
                return
            self._remove(files)

    def _remove(self, files: list[Path]) -> None:
        own = [Path(_SHARED_MEMORY, self._region)] if self._region else []
        for file in [*own, *files]:
            file.unlink(missing_ok=True)

    def _say(self, what: str) -> None:
        with contextlib.suppress(OSError):  # whoever read the server's log may be gone too
            print(f"{self._name}: {what}", file=sys.stderr, flush=True)


def option(arguments: Sequence[str], name: str, default: float) -> str:
    """The value of --name=value or --name value; the last one counts."""
    value = str(default)
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if argument == f"--{name}":
            value = following
        elif argument.startswith(f"--{name}="):
            value = argument.partition("=")[2]
    return value if re.fullmatch(r"[0-9]+(\.[0-9]*)?", value) else str(default)


def _arguments(pid: int) -> list[str]:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _birth(pid: int) -> str | None:
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def _listening(pid: int, ports: set[int]) -> set[str] | None:
    """The sockets, by inode, on which the process listens at these ports; None where that cannot be told now."""
    try:
        mine = _sockets(pid)
        tables = [Path(f"/proc/{pid}/net/{table}").read_text() for table in ("tcp", "tcp6")]
    except OSError:
        return None
    found: set[str] = set()
    for line in [line for table in tables for line in table.splitlines()[1:]]:
        fields = line.split()
        port, inode = int(fields[1].rpartition(":")[2], 16), fields[9]
        if fields[3] == _LISTENING and port in ports and inode in mine:
            found.add(inode)
    return found


def _sockets(pid: int) -> set[str]:
    """The inodes of the process's sockets. Raises OSError where they cannot be listed now."""
    links = (_target(entry.path) for entry in os.scandir(f"/proc/{pid}/fd"))
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def _target(link: str) -> str:
    """What a file descriptor refers to; connections are closed all the time, while we look."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _mapped_files(pid: int, region: str) -> list[Path]:
    """The server's files in shared memory that are named like the stub's: Triton's own, not those of its clients."""
    prefix = _SHARED_MEMORY + _UUID.sub("", region)
    try:
        lines = Path("/proc", str(pid), "maps").read_text().splitlines()
    except OSError:
        return []
    names = {line[line.index("/") :] for line in lines if _SHARED_MEMORY in line}
    return [Path(name) for name in sorted(names) if region and name.startswith(prefix)]


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C, or an orchestrator, may tell the whole group
        signal.signal(number, signal.SIG_IGN)
    Watch(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]).run()
