"""A streamed answer, read with plain calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from time import monotonic
from types import TracebackType

from swift_client.core.decoding import decode_stopped
from swift_client.core.errors import ConnectionFailed, DeadlineExceeded, ProtocolError, SwiftClientError
from swift_client.core.generation import Generation
from swift_client.core.leaving import END_SECONDS, STOP_SECONDS, ends_by_itself, pauses
from swift_client.core.progress import Progress
from swift_client.core.request import InferRequest, Response
from swift_client.core.results import Chunk, Completion
from swift_client.core.retry import draw
from swift_client.sync_calls import Call, Calls


class Stream(Progress):
    """An answer as it comes: iterate over it, in a `with` block. Leaving the block early cancels it on the server.

    Before the end, the attributes have what came so far. One thread reads; any may close.

    >>> from swift_client import FakeTransport, SwiftClient
    >>> with SwiftClient(transport=FakeTransport(["Hel", "lo"])) as client:
    ...     with client.stream("Hi") as stream:
    ...         for chunk in stream: print(chunk.text, end="|")
    ...         stream.result().text
    Hel|lo|'Hello'
    """

    def __init__(
        self,
        calls: Calls,
        generation: Generation,
        stop: InferRequest,
        on_end: Callable[[Stream], None],
    ) -> None:
        super().__init__(generation)
        self._calls = calls
        self._stop_request = stop
        self._on_end = on_end
        self._call: Call | None = None
        self._reading = threading.Lock()
        self._left = False
        self._asked = False

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        """The next chunk; raises a SwiftClientError."""
        with self._reading:
            if self._left:
                raise self._generation.closed()
            if self._generation.over:
                self._finish()
                raise StopIteration
            return self._next_chunk()

    def result(self) -> Completion:
        """The whole, read to its end if it is not yet; what was read, where the stream was left."""
        if not self._generation.over:
            for _ in self:
                pass
        with self._reading:
            self._finish()
        return self._generation.completion()

    def close(self) -> None:
        """Let go of it; if it is not at its end, cancel it on the server. From any thread, any number of times."""
        if not self._generation.over:
            self._left = True
        if not self._reading.acquire(blocking=False):
            self._stop()  # the thread that waits for a chunk gets the end of the call
            if not self._reading.acquire(timeout=END_SECONDS):
                if (call := self._call) is not None:
                    call.abort()
                self._reading.acquire()
        try:
            self._leave()
        finally:
            self._reading.release()

    def _next_chunk(self) -> Chunk:
        while True:
            try:
                chunk = self._generation.receive(self._receive(), monotonic())
            except SwiftClientError as error:
                self._recover(error)
            else:
                if self._left:
                    raise self._generation.closed()
                if chunk is not None:
                    return chunk

    def _receive(self) -> Response | None:
        self._asked = True
        if self._call is None:
            self._generation.ask(monotonic())
            connect = self._generation.timeout.connect
            self._call = self._calls.open(self._generation.request, connect, self._stop)
        deadline = self._generation.deadline()
        try:
            return self._call.receive(deadline)
        except TimeoutError:
            assert deadline is not None
            raise self._generation.expire(deadline) from None

    def _recover(self, error: SwiftClientError) -> None:
        """Get ready for another attempt, or raise."""
        if isinstance(error, DeadlineExceeded | ProtocolError):
            self._withdraw()
        else:
            if isinstance(error, ConnectionFailed) and self._generation.started_answering:
                self._stop()  # an ensemble goes on without its reader
            self._drain()
        self._release()
        if self._left:
            raise self._generation.closed()
        try:
            delay = self._generation.fail(error, monotonic(), draw())
        except SwiftClientError:
            self._on_end(self)
            raise
        time.sleep(delay)

    def _leave(self) -> None:
        if self._asked and not self._generation.over:
            self._withdraw()
        self._finish()
        self._generation.leave()

    def _finish(self) -> None:
        """Read the end of the call after its last response, and let go of it."""
        self._drain()
        self._release()
        self._on_end(self)

    def _withdraw(self) -> None:
        """See core.leaving."""
        answering, found = self._generation.started_answering, None
        for pause in pauses(answering):
            time.sleep(pause)
            if (found := self._stop()) is not False:
                break
        if ends_by_itself(found, answering):
            self._drain()
        self._release()

    def _stop(self) -> bool | None:
        """Whether the server knew the request; None where it could not be asked."""
        try:
            return decode_stopped(self._calls.ask(self._stop_request, STOP_SECONDS, STOP_SECONDS))
        except SwiftClientError:
            return None

    def _drain(self) -> None:
        if self._call is not None:
            self._call.drain(END_SECONDS)

    def _release(self) -> None:
        if self._call is not None:
            call, self._call = self._call, None
            call.close()
