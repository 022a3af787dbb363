"""How is one request sent and its answer waited for? With plain calls."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from time import monotonic

from swift_client.core.errors import Cancelled, ProtocolError, SwiftClientError
from swift_client.core.leaving import LATE_SECONDS, no_answer
from swift_client.core.request import Request, Response, id_of
from swift_client.core.timeout import Deadline
from swift_client.transports.protocol import Exchange, Limits, Transport
from swift_client.transports.watch import Alarm, Watch


def _nothing() -> bool | None:
    """What is done when a call answers that nobody waits for any more, and needs no stop."""
    return None


class Calls:
    """All calls of a client, those that were given up before they answered included."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.watch = Watch()
        self._lock = threading.Lock()
        self._waiting: set[threading.Thread] = set()

    def open(self, request: Request, connect: float | None, on_late: Callable[[], bool | None] = _nothing) -> Call:
        """Send a request. on_late: stops it when it answers after it was closed, on another thread."""
        return Call(self, request, Limits(connect), on_late)

    def ask(self, request: Request, connect: float | None, seconds: float) -> Response:
        """The one answer, once its call has ended; DeadlineExceeded after so many seconds."""
        deadline = Deadline(monotonic() + seconds, "total", seconds)
        try:
            with contextlib.closing(self.open(request, connect)) as call:
                first = rest = call.receive(deadline)
                while rest is not None:
                    rest = call.receive(deadline)
            if first is None:
                raise ProtocolError("the server gave no answer")
        except TimeoutError:
            raise no_answer(request, seconds) from None
        except SwiftClientError as error:
            error.request_id = error.request_id or id_of(request)
            raise
        return first

    def start(self, work: Callable[[], None]) -> None:
        """On a thread that `close` waits for."""

        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._waiting.discard(thread)

        thread = threading.Thread(target=run, name="swift-client-wait", daemon=True)
        with self._lock:
            self._waiting.add(thread)
        thread.start()

    def close(self) -> None:
        """Give late answers a moment, then close all connections."""
        until = monotonic() + LATE_SECONDS
        self._join(lambda: until - monotonic())
        self.transport.close()
        self._join(lambda: LATE_SECONDS)
        self.watch.close()

    def _join(self, seconds: Callable[[], float]) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for thread in waiting:
            thread.join(max(0.0, seconds()))


class Call:
    """One exchange. Its first answer is waited for on a thread of its own, which can be left; see core.leaving."""

    def __init__(self, calls: Calls, request: Request, limits: Limits, on_late: Callable[[], bool | None]) -> None:
        self._calls = calls
        self._on_late = on_late
        self._first: queue.SimpleQueue[Response | Exception | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._answered = self._closed = False
        self._ended = False  # or broken: there is nothing to wait for any more
        self._exchange: Exchange | None = None
        self._alarm: Alarm | None = None
        calls.start(lambda: self._wait(request, limits))

    def receive(self, deadline: Deadline | None) -> Response | None:
        """The next response, None at the end; TimeoutError when the deadline has passed."""
        if self._alarm is None:
            return self._receive_first(deadline)
        assert self._exchange is not None
        self._calls.watch.set(self._alarm, deadline.at if deadline else None)
        try:
            return self._exchange.receive()
        except SwiftClientError:
            if self._alarm.rang:
                raise TimeoutError from None
            raise
        except BaseException:  # a wait that Ctrl-C interrupts cannot be begun again
            self._ended = True
            raise
        finally:
            self._alarm.at = None

    def drain(self, seconds: float) -> None:
        """Read on to the end of the call, for so long at most."""
        end = Deadline(monotonic() + seconds, "total", seconds)
        with contextlib.suppress(SwiftClientError, TimeoutError):
            while not self._ended and self.receive(end) is not None:
                pass

    def abort(self) -> None:
        """From any thread: whoever waits gets an error."""
        if self._alarm is not None:
            self._alarm.ring()
        else:
            self._first.put(Cancelled("the call was given up"))

    def close(self) -> None:
        """Cancel the call if it has not ended; if it has not even answered, as soon as it does."""
        with self._lock:
            self._closed = True
            answered = self._answered
        if self._alarm is not None:
            self._calls.watch.remove(self._alarm)
        if answered and self._exchange is not None:
            self._exchange.close()

    def _receive_first(self, deadline: Deadline | None) -> Response | None:
        try:
            item = self._first.get(timeout=None if deadline is None else max(0.0, deadline.at - monotonic()))
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(item, Exception):
            self._ended = True
            raise item
        assert self._exchange is not None
        self._alarm = self._calls.watch.add(self._exchange.abort)
        return item

    def _wait(self, request: Request, limits: Limits) -> None:
        item: Response | Exception | None
        try:
            self._exchange = self._calls.transport.open(request, limits)
            item = self._exchange.receive()
        except Exception as error:
            item = error
        with self._lock:
            self._answered = True
            late = self._closed
        self._first.put(item)
        if late and self._exchange is not None:
            self._let_go(self._exchange)

    def _let_go(self, exchange: Exchange) -> None:
        found = self._on_late()
        with contextlib.suppress(SwiftClientError):
            while found and exchange.receive() is not None:
                pass
        exchange.close()
