"""Who sends the answers? Threads between engine and Triton, since each send is a round trip between processes."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock
from time import monotonic
from typing import Protocol

from swift_backend.errors import SwiftError, Unavailable
from swift_backend.sequence import Output
from swift_backend.serving.reply import Reply
from swift_backend.serving.sender_threads import SenderThreads

POLL_SECONDS = 0.25
# A reader that has so many outputs to come pauses its own request.
MOST_UNSENT = 16
# A reader that has taken nothing for so long is taken to be gone: its request would keep its place for ever.
ABANDONED_SECONDS = 300.0


class Control(Protocol):
    """What the responder asks of the engine; any thread."""

    def cancel(self, request_id: str) -> None:
        """End a request."""

    def pause(self, request_id: str, paused: bool) -> None:
        """Hold a request, or let it go on; called under a lock, so that the last call is the latest."""


class Responder:
    """The replies that are still open, and the threads that send.

    A reply is worked on by one thread at a time, its owner: then its outputs stay in order. So a send that blocks holds
    up this one client, whose request is paused, and nobody else: SenderThreads puts another thread in place.

    engine: called when it is needed for the first time, since it is made later than the responder.
    log_error: writes one line to the server's log. clock: seconds, monotonic.
    """

    def __init__(
        self,
        engine: Callable[[], Control],
        log_error: Callable[[str], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._engine = engine
        self._log_error = log_error
        self._clock = clock
        self._ready: SimpleQueue[Reply | None] = SimpleQueue()
        self._open: dict[str, Reply] = {}
        self._poll_at = clock() + POLL_SECONDS
        self._lock = Lock()
        self._threads = SenderThreads(lambda: self.step(POLL_SECONDS))

    def start(self) -> None:
        """Start sending."""
        self._threads.start()

    def open(self, reply: Reply) -> None:
        """Expect outputs for this reply, until one of them is the last. Any thread."""
        with self._lock:
            if not reply.over:
                reply.poll_at = self._clock() + POLL_SECONDS
                self._open[reply.request_id] = reply

    def on_output(self, output: Output) -> None:
        """Queue an output for sending; nothing counts after the last. Any thread; never blocks."""
        with self._lock:
            reply = self._open.get(output.request_id)
            if reply is None or reply.over:
                return
            reply.pending.append(output)
            reply.over = output.finished
            lags = len(reply.pending) > MOST_UNSENT and not (reply.paused or reply.over)
            if lags:
                reply.paused, reply.paused_at = True, self._clock()
                self._engine().pause(output.request_id, True)
            if not reply.owned:
                reply.owned = True
                self._ready.put(reply)  # with the lock: a reply that is owned but in no queue would be lost at the end

    def fail(self, request_id: str, error: SwiftError) -> None:
        """Queue an error as the last output of an open request. Any thread."""
        self.on_output(Output(request_id, finish_reason="error", error=error))

    def fail_open(self, error: SwiftError) -> None:
        """End every request that is still open once the queue has been worked off. Any thread."""
        for reply in self._replies():
            self.fail(reply.request_id, error)

    def stop(self, client_id: str) -> bool:
        """Cancel the open requests with this Triton id, and tell whether there were any. Any thread."""
        found = [reply for reply in self._replies() if client_id and reply.client_id == client_id and not reply.over]
        for reply in found:
            self._withdraw(reply)
        return bool(found)

    def close(self, timeout: float) -> bool:
        """Send what is queued, end what is still open, stop the threads; False if that took too long (seconds)."""
        self._threads.end()
        self._ready.put(None)
        return self._threads.join(timeout)

    def step(self, wait: float) -> bool:
        """Send everything that is queued, waiting up to `wait` seconds for it; False after close."""
        try:
            reply = self._ready.get(timeout=wait) if wait else self._ready.get_nowait()
            while reply is not None:
                self._deliver(reply)
                if self._clock() >= self._poll_at:  # however busy it is
                    self._poll_clients()
                reply = self._ready.get_nowait()
        except Empty:
            self._poll_clients()
            return True
        self.fail_open(Unavailable("the server is shutting down"))
        with contextlib.suppress(Empty):
            while True:
                reply = self._ready.get_nowait()
                if reply is not None:
                    self._deliver(reply)
        self._ready.put(None)  # for the other threads
        return False

    def _deliver(self, reply: Reply) -> None:
        """Send what one reply has pending; one response then carries several outputs (fewer round trips)."""
        with self._lock:
            outputs = list(reply.pending)
            reply.pending.clear()
        if outputs:
            with self._threads.sending():
                self._tell(reply, outputs)
        if reply.closed:
            with self._lock:
                self._open.pop(reply.request_id, None)
        else:
            self._disown(reply)

    def _tell(self, reply: Reply, outputs: list[Output]) -> None:
        try:
            if reply.deliver(outputs):
                reply.poll_at = self._clock()
        except Exception as error:  # the way to one client is broken, or our tensors are: the others go on
            self._break(reply, error, outputs[-1].finished)

    def _break(self, reply: Reply, error: Exception, finished: bool) -> None:
        """Log once, withdraw the request, and still try to give Triton its FINAL."""
        if reply.failure is None:
            reply.failure = error
            self._log_error(f"request {reply.label}: the answer could not be sent\n{_trace(error)}")
            self._withdraw(reply)
        if finished and not reply.closed:
            self._last_word(reply, error)

    def _last_word(self, reply: Reply, error: Exception) -> None:
        try:
            reply.fail(error)
        except Exception as again:
            self._log_error(f"request {reply.label}: could not be ended: {again}")

    def _poll_clients(self) -> None:
        """Ask Triton about each client that just got a chunk, and about the others every POLL_SECONDS."""
        now = self._clock()
        self._poll_at = now + POLL_SECONDS
        for reply in self._replies():
            if reply.paused and now - reply.paused_at >= ABANDONED_SECONDS and not reply.withdrawn:
                self._log_error(f"request {reply.label}: cancelled, nobody has read for {ABANDONED_SECONDS:g} s")
                self._withdraw(reply)
            if reply.poll_at <= now and not reply.client_left and self._own(reply):
                reply.poll_at = now + POLL_SECONDS
                with self._threads.sending():
                    self._poll(reply)
                self._disown(reply)

    def _poll(self, reply: Reply) -> None:
        try:
            if reply.is_cancelled():
                self._withdraw(reply)
        except Exception as error:
            self._break(reply, error, finished=False)

    def _withdraw(self, reply: Reply) -> None:
        reply.withdrawn = True
        self._engine().cancel(reply.request_id)

    def _own(self, reply: Reply) -> bool:
        """Become a reply's owner, unless it has one, or is over."""
        with self._lock:
            if reply.owned or reply.over:
                return False
            reply.owned = True
            return True

    def _disown(self, reply: Reply) -> None:
        """Leave a reply to whoever comes next; one that lagged and has caught up lets its request go on."""
        with self._lock:
            reply.owned = bool(reply.pending)
            resumes = reply.paused and len(reply.pending) <= MOST_UNSENT // 2
            reply.paused &= not resumes
            if resumes:
                self._engine().pause(reply.request_id, False)
            if reply.owned:
                self._ready.put(reply)

    def _replies(self) -> list[Reply]:
        with self._lock:
            return list(self._open.values())


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error)).rstrip()
