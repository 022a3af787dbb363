"""How many threads send? One, and one more for each that is stuck with a client who does not read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from threading import Event, Lock, Thread, get_ident
from time import monotonic

PATIENCE_SECONDS = 0.25


class SenderThreads:
    """Threads that repeat a step until it returns False.

    When all of them have been sending for longer than PATIENCE_SECONDS, another one takes over; one that comes back
    ends if it is not needed any more.
    """

    def __init__(self, step: Callable[[], bool]) -> None:
        self._step = step
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._sending: dict[int, float] = {}
        self._ending = False
        self._ended = Event()
        self._watch = Thread(target=self._replace_stuck, name="swift-sender-watch", daemon=True)

    def start(self) -> None:
        """Start the first thread, and the one that watches."""
        self._add()
        self._watch.start()

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Surrounds what may block."""
        self._sending[get_ident()] = monotonic()
        try:
            yield
        finally:
            del self._sending[get_ident()]

    def end(self) -> None:
        """From now on no thread is spare: each goes on until its step returns False.

        To be called before steps begin to return False: one that still brings work must find somebody to do it.
        """
        with self._lock:
            self._ending = True

    def join(self, timeout: float) -> bool:
        """Wait until the steps have returned False in all threads; False when that took too long (seconds)."""
        deadline = monotonic() + timeout
        while (alive := self._alive()) and monotonic() < deadline:
            alive[0].join(min(PATIENCE_SECONDS, max(0.0, deadline - monotonic())))
        self._ended.set()
        return not alive

    def _add(self) -> None:
        thread = Thread(target=self._work, name="swift-sender", daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while self._step():
            if self._leave_if_spare():
                return

    def _leave_if_spare(self) -> bool:
        with self._lock:
            idle = [thread for thread in self._threads if thread.is_alive() and thread.ident not in self._sending]
            if self._ending or len(idle) < 2:
                return False
            self._threads = [thread for thread in self._threads if thread.ident != get_ident()]
            return True

    def _replace_stuck(self) -> None:
        while not self._ended.wait(PATIENCE_SECONDS):
            since = dict(self._sending)
            latest = monotonic() - PATIENCE_SECONDS
            if all(since.get(thread.ident or 0, latest + 1) <= latest for thread in self._alive()):
                self._add()

    def _alive(self) -> list[Thread]:
        with self._lock:
            return [thread for thread in self._threads if thread.is_alive()]
