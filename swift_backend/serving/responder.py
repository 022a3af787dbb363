"""Who sends the answers? One thread between engine and Triton, since each send is a round trip between processes."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic

from swift_backend.errors import SwiftError, Unavailable
from swift_backend.sequence import Output
from swift_backend.serving.reply import Reply

POLL_SECONDS = 0.25


class Responder:
    """The sender thread and the replies that are still open.

    cancel: tells the engine to end a request, by the engine's id.
    log_error: writes one line to the server's log.
    clock: seconds, monotonic.
    """

    def __init__(
        self,
        cancel: Callable[[str], None],
        log_error: Callable[[str], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._cancel = cancel
        self._log_error = log_error
        self._clock = clock
        self._queue: SimpleQueue[Output | None] = SimpleQueue()
        self._open: dict[str, Reply] = {}
        self._lock = Lock()
        self._thread = Thread(target=self._run, name="swift-responder", daemon=True)

    def start(self) -> None:
        """Start the sender thread."""
        self._thread.start()

    def open(self, reply: Reply) -> None:
        """Expect outputs for this reply, until one of them is the last. Any thread."""
        reply.poll_at = self._clock() + POLL_SECONDS
        with self._lock:
            self._open[reply.request_id] = reply

    def on_output(self, output: Output) -> None:
        """Queue an output for sending. Any thread; never blocks."""
        self._queue.put(output)

    def fail(self, request_id: str, error: SwiftError) -> None:
        """Queue an error as the last output of an open request. Any thread."""
        self._queue.put(Output(request_id, finish_reason="error", error=error))

    def fail_open(self, error: SwiftError) -> None:
        """End every request that is still open once the queue has been worked off. Any thread."""
        for reply in self._replies():
            self.fail(reply.request_id, error)

    def stop(self, client_id: str) -> bool:
        """Cancel the open requests with this Triton id, and tell whether there were any. Any thread."""
        found = [reply for reply in self._replies() if client_id and reply.client_id == client_id]
        for reply in found:
            self._cancel(reply.request_id)
        return bool(found)

    def close(self, timeout: float) -> bool:
        """Send what is queued, end what is still open, stop the thread; False if that took too long (seconds)."""
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def step(self, wait: float) -> bool:
        """Send everything that is queued, waiting up to `wait` seconds for it; False after close."""
        news, closing = self._collect(wait)
        for request_id, outputs in news.items():
            self._deliver(request_id, outputs)
        if closing:
            for reply in self._replies():
                error = Unavailable("the server is shutting down")
                self._deliver(reply.request_id, [Output(reply.request_id, finish_reason="error", error=error)])
        else:
            self._poll_clients()
        return not closing

    def _run(self) -> None:
        while self.step(POLL_SECONDS):
            pass

    def _collect(self, wait: float) -> tuple[dict[str, list[Output]], bool]:
        """All queued outputs, by request in order of arrival: one response then carries several (fewer round trips)."""
        news: dict[str, list[Output]] = {}
        try:
            item = self._queue.get(timeout=wait) if wait else self._queue.get_nowait()
            while item is not None:
                outputs = news.setdefault(item.request_id, [])
                if not outputs or not outputs[-1].finished:  # nothing counts after the last
                    outputs.append(item)
                item = self._queue.get_nowait()
            return news, True
        except Empty:
            return news, False

    def _deliver(self, request_id: str, outputs: list[Output]) -> None:
        with self._lock:
            reply = self._open.get(request_id)
        if reply is None:
            return
        if not reply.closed:
            self._tell(reply, outputs)
        if reply.closed:
            with self._lock:
                del self._open[request_id]

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
            self._cancel(reply.request_id)
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
        for reply in self._replies():
            if reply.poll_at <= now and not reply.client_left:
                reply.poll_at = now + POLL_SECONDS
                self._poll(reply)

    def _poll(self, reply: Reply) -> None:
        try:
            if reply.is_cancelled():
                self._cancel(reply.request_id)
        except Exception as error:
            self._break(reply, error, finished=False)

    def _replies(self) -> list[Reply]:
        with self._lock:
            return list(self._open.values())


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error)).rstrip()
