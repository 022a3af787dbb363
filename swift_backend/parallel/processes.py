"""Where do the other ranks run, and have they failed? A process for each, and a thread that watches over them."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from threading import Event, Thread
from time import monotonic
from typing import Any

from swift_backend.errors import RankFailure
from swift_backend.parallel.orders import Failed

# One rank that fails takes the others along: for so long, whoever was first may still say so.
GRACE_SECONDS = 0.5
EXIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A rank's process, and the line to it."""

    rank: int
    process: subprocess.Popen[bytes]
    line: Connection

    @classmethod
    def start(cls, rank: int) -> Worker:
        """OSError when no process can be started."""
        ours, its = socket.socketpair()
        python = sys.executable if os.access(sys.executable or "", os.X_OK) else shutil.which("python3") or "python3"
        command = [python, "-m", "swift_backend.parallel.worker", str(its.fileno())]
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)  # wherever this process has its packages from
        environment = {**os.environ, "PYTHONPATH": paths}
        with ours, its:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()], env=environment)
            return cls(rank, process, Connection(ours.detach()))

    def say(self, message: bytes) -> None:
        """OSError when it is gone."""
        self.line.send_bytes(message)

    def hear(self) -> Any:
        """Its next answer; a Failed when it has none left."""
        try:
            return pickle.loads(self.line.recv_bytes())
        except (EOFError, OSError):
            return Failed(self._ending(), own=True)

    def _ending(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(EXIT_SECONDS)
            return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"
        return "it has hung up"


def end(workers: Iterable[Worker]) -> None:
    """Kill, and wait until they are gone, but not for ever; they keep nothing that is worth an orderly end."""
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(EXIT_SECONDS)


def failure_of(news: Iterable[tuple[int, Failed]]) -> RankFailure:
    """Of what ranks said last, the one that is a cause and not a consequence."""
    rank, failed = min(news, key=lambda one: not one[1].own)
    return RankFailure(f"rank {rank} of tensor_parallel has failed: {failed.cause}")


class Watch:
    """From now on the workers say nothing, unless they fail.

    failure: what became of them; told: set once that is known.
    """

    def __init__(self, workers: Seq[Worker], abort: Callable[[], None]) -> None:
        """abort: frees those who wait for the ranks; called once, on another thread, after the failure is known."""
        self.failure: RankFailure | None = None
        self.told = Event()
        self._listeners: list[Callable[[Exception], None]] = []
        self._workers, self._abort = workers, abort
        self._thread = Thread(target=self._look, name="swift-ranks", daemon=True)
        self._thread.start()

    def on_failure(self, tell: Callable[[Exception], None]) -> None:
        """Have `tell` called with the failure, on the watch's thread, or at once where it is known already."""
        self._listeners.append(tell)
        if self.failure is not None:
            tell(self.failure)

    def end(self, reason: str) -> None:
        """Nobody needs to be told any more: this is on purpose, or known already."""
        self._listeners.clear()
        self.failure = self.failure or RankFailure(reason)
        self.told.set()

    def _look(self) -> None:
        news = _last_words(self._workers)
        if self.told.is_set():
            return
        self.failure = failure_of(news)
        self.told.set()
        for worker in self._workers:  # the living wait for the dead
            worker.process.kill()
        self._abort()
        for tell in list(self._listeners):
            tell(self.failure)
        end(self._workers)


def _last_words(workers: Iterable[Worker]) -> list[tuple[int, Failed]]:
    """Of the first to fail, and of those who do soon after it."""
    lines = {worker.line: worker for worker in workers}
    news: list[tuple[int, Failed]] = []
    deadline: float | None = None
    while lines:
        ready = wait(list(lines), None if deadline is None else max(0.0, deadline - monotonic()))
        if not ready:
            break
        for line in ready:
            worker = lines.pop(line)  # type: ignore[call-overload]
            news.append((worker.rank, worker.hear()))
        deadline = deadline or monotonic() + GRACE_SECONDS
    return news
