"""How do other threads reach the engine? One mailbox, drained once per step."""

from __future__ import annotations

from collections import deque
from threading import Condition
from typing import NamedTuple

from swift_backend.errors import Unavailable
from swift_backend.sequence import Request


class Mail(NamedTuple):
    """Everything that arrived since the last look."""

    requests: list[Request]
    cancelled: set[str]
    paused: dict[str, bool]


class Inbox:
    """A bounded, thread-safe mailbox: submit, cancel and pause from any thread, take on the engine's."""

    def __init__(self, capacity: int, places: int = 0) -> None:
        """capacity: requests that may wait; places: those that are free for requests to run."""
        self._capacity = capacity
        self._places = places
        self._requests: deque[Request] = deque()
        self._cancelled: set[str] = set()
        self._paused: dict[str, bool] = {}
        self._changed = Condition()
        self._backlog = 0
        self.closed = False
        self._reason = ""
        self._failure: Exception | None = None

    def submit(self, request: Request) -> None:
        """Queue a request; Unavailable when the queue is full or the engine is stopping."""
        with self._changed:
            if self.closed:
                raise Unavailable(self._reason)
            waiting = max(0, len(self._requests) + self._backlog - self._places)
            if waiting >= self._capacity:
                raise Unavailable(f"the waiting queue is full: {waiting} of {self._capacity} requests wait")
            self._requests.append(request)
            self._changed.notify()

    def cancel(self, request_id: str) -> None:
        """Ask for a request to end; unknown and finished ids are ignored by the engine."""
        with self._changed:
            self._cancelled.add(request_id)
            self._changed.notify()

    def pause(self, request_id: str, paused: bool) -> None:
        """Hold a request's generation, or let it go on; unknown and finished ids are ignored by the engine."""
        with self._changed:
            self._paused[request_id] = paused
            self._changed.notify()

    def close(self, reason: str = "the server is shutting down") -> None:
        """Refuse new requests, with this reason, and wake the engine; the first reason stays."""
        with self._changed:
            self._reason = self._reason or reason
            self.closed = True
            self._changed.notify()

    def fail(self, error: Exception) -> None:
        """Wake the engine, and raise this where it takes its mail: what it runs on has failed."""
        with self._changed:
            self._failure = error
            self._changed.notify()

    def take(self) -> Mail:
        """Empty the box; what was in it counts as waiting until note_standing says otherwise.

        Raises what fail() was told, unless the box is closed.
        """
        with self._changed:
            if self._failure is not None and not self.closed:
                raise self._failure
            mail = Mail(list(self._requests), self._cancelled, self._paused)
            self._requests.clear()
            self._cancelled, self._paused = set(), {}
            self._backlog += len(mail.requests)
            return mail

    def note_standing(self, waiting: int, places: int) -> None:
        """Say how many of the requests taken so far still wait, and how many places are free.

        What waits counts against the capacity; while something waits, it is not places that are short.
        """
        with self._changed:
            self._backlog = waiting
            self._places = 0 if waiting else places

    def wait(self, timeout: float | None = None) -> None:
        """Block until there is mail or a failure, the box is closed, or the timeout (seconds) has passed."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._has_mail(), timeout)

    def _has_mail(self) -> bool:
        return bool(self._requests or self._cancelled or self._paused or self._failure)
