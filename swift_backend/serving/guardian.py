"""What happens when this process dies, its engine fails, or the server goes? A child process sees to it."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock, Thread

from swift_backend.serving import dead_stub_watch

_log = logging.getLogger(__name__)
# Triton starts a stub with: the program, model.py, region, two sizes, the server's process id, …
_SERVER_ARGUMENT = 5
GOODBYE_SECONDS = 5.0


class Guardian:
    """A process that outlives this one, and ends tritonserver when this one is gone without a good-bye.

    Whoever makes one must say goodbye() before this process ends in peace. See dead_stub_watch for what it does.
    """

    def __init__(self, name: str, server: int, region: str, on_stopping: Callable[[float], None]) -> None:
        """name: the model's, for the log. server: Triton's process id. region: of this stub, see region_of_this_stub.

        on_stopping: called, on a thread of its own, when the server is about to stop, with its time limit in seconds.
        Raises OSError where no process can be started.
        """
        python = sys.executable if os.access(sys.executable or "", os.X_OK) else shutil.which("python3") or "python3"
        command = [python, "-I", "-S", dead_stub_watch.__file__, name, str(server), str(os.getpid()), region]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=True)
        self._name = name
        self._lock, self._word = Lock(), b""
        self._on_stopping = on_stopping
        self._thread = Thread(target=self._listen, name="swift-guardian", daemon=True)
        self._thread.start()

    def stop_server(self) -> None:
        """Have the server stopped, and killed if it does not."""
        self._say(b"stop")

    def goodbye(self) -> None:
        """End the watch."""
        if not self._say(b"bye"):  # where it was told to stop the server, it waits for the server, which waits for us
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GOODBYE_SECONDS)
        self._thread.join(GOODBYE_SECONDS)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as news:
            for line in news:
                word, _, seconds = line.decode().partition(" ")
                if word == "stopping":
                    self._on_stopping(float(seconds))
        if not self._word:
            _log.error("%s: the process that watches over this one and its server has ended", self._name)

    def _say(self, word: bytes) -> bool:
        """Say the only word that there will be; False where one was said already, or nobody listens."""
        assert self._process.stdin is not None
        with self._lock:  # one thread says that the engine has failed, another that the model is unloaded
            if self._word:
                return False
            self._word = word
            try:
                self._process.stdin.write(word)
                self._process.stdin.close()
            except BrokenPipeError:
                return False
            return True


def guard_this_stub(name: str, on_stopping: Callable[[float], None] = lambda seconds: None) -> Guardian | None:
    """A guardian for this process; None where it is no stub of Triton's, and has no server to end."""
    argv = _command_line()
    region, server = region_of_this_stub(argv), os.getppid()
    if not region or str(server) != argv[_SERVER_ARGUMENT]:  # or the server has died, and another is our parent
        return None
    if server == 1:
        _log.warning("%s: tritonserver is process 1, which nobody can kill: run it under an init", name)
    try:
        return Guardian(name, server, region, on_stopping)
    except OSError as error:
        _log.warning("nobody watches over this process and its server: %s", error)
        return None


def region_of_this_stub(argv: list[str] | None = None) -> str:
    """The name of the stub's file in shared memory, from its command line; "" where this is no stub."""
    argv = _command_line() if argv is None else argv
    return argv[2] if len(argv) > _SERVER_ARGUMENT and Path(argv[0]).name == "triton_python_backend_stub" else ""


def _command_line() -> list[str]:
    return Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")
