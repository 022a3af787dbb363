"""A streamed answer, read on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic
from types import TracebackType

from swift_client.async_calls import AsyncCall, AsyncCalls
from swift_client.core.decoding import decode_stopped
from swift_client.core.errors import ConnectionFailed, DeadlineExceeded, ProtocolError, SwiftClientError
from swift_client.core.generation import Generation
from swift_client.core.leaving import END_SECONDS, STOP_SECONDS, ends_by_itself, pauses
from swift_client.core.progress import Progress
from swift_client.core.request import InferRequest, Response
from swift_client.core.results import Chunk, Completion
from swift_client.core.retry import draw


class AsyncStream(Progress):
    """An answer as it comes: iterate over it, in an `async with` block. Leaving the block early cancels it on the
    server, and so does cancelling the task that reads.

    Before the end, the attributes have what came so far. One task reads; any may close.

    >>> import asyncio
    >>> from swift_client import AsyncSwiftClient, FakeTransport
    >>> async def main() -> None:
    ...     async with AsyncSwiftClient(transport=FakeTransport(["Hel", "lo"])) as client:
    ...         async with client.stream("Hi") as stream:
    ...             async for chunk in stream: print(chunk.text, end="|")
    ...         print((await stream.result()).text)
    >>> asyncio.run(main())
    Hel|lo|Hello
    """

    def __init__(
        self,
        calls: AsyncCalls,
        generation: Generation,
        stop: InferRequest,
        on_end: Callable[[AsyncStream], None],
    ) -> None:
        super().__init__(generation)
        self._calls = calls
        self._stop_request = stop
        self._on_end = on_end
        self._call: AsyncCall | None = None
        self._closing: asyncio.Task[None] | None = None
        self._left = False

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        """The next chunk; raises a SwiftClientError."""
        if self._left:
            raise self._generation.closed()
        if self._generation.over:
            await self._finish()
            raise StopAsyncIteration
        try:
            return await self._next_chunk()
        except asyncio.CancelledError:
            await self.aclose()
            raise

    async def result(self) -> Completion:
        """The whole, read to its end if it is not yet; what was read, where the stream was left."""
        if not self._generation.over:
            async for _ in self:
                pass
        await self._finish()
        return self._generation.completion()

    async def aclose(self) -> None:
        """Let go of it; if it is not at its end, cancel it on the server. Any number of times."""
        if not self._generation.over:
            self._left = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._leave())
        # Whoever waits here may be cancelled once more: the request is withdrawn all the same.
        await asyncio.shield(self._closing)

    async def _next_chunk(self) -> Chunk:
        while True:
            try:
                chunk = self._generation.receive(await self._receive(), monotonic())
            except SwiftClientError as error:
                await self._recover(error)
            else:
                if self._left:
                    raise self._generation.closed()
                if chunk is not None:
                    return chunk

    async def _receive(self) -> Response | None:
        if self._call is None:
            self._generation.ask(monotonic())
            connect = self._generation.timeout.connect
            self._call = self._calls.open(self._generation.request, connect, self._stop)
        deadline = self._generation.deadline()
        try:
            return await self._call.receive(deadline)
        except TimeoutError:
            assert deadline is not None
            raise self._generation.expire(deadline) from None

    async def _recover(self, error: SwiftClientError) -> None:
        """Get ready for another attempt, or raise."""
        if isinstance(error, DeadlineExceeded | ProtocolError):
            await self._withdraw()
        else:
            if isinstance(error, ConnectionFailed) and self._generation.started_answering:
                await self._stop()  # an ensemble goes on without its reader
            await self._drain()
        await self._release()
        if self._left:
            raise self._generation.closed()
        try:
            delay = self._generation.fail(error, monotonic(), draw())
        except SwiftClientError:
            self._on_end(self)
            raise
        await asyncio.sleep(delay)

    async def _leave(self) -> None:
        if self._call is not None and not self._generation.over:
            await self._withdraw()
        await self._finish()
        self._generation.leave()

    async def _finish(self) -> None:
        """Read the end of the call after its last response, and let go of it."""
        await self._drain()
        await self._release()
        self._on_end(self)

    async def _withdraw(self) -> None:
        """See core.leaving."""
        answering, found = self._generation.started_answering, None
        for pause in pauses(answering):
            await asyncio.sleep(pause)
            if (found := await self._stop()) is not False:
                break
        if ends_by_itself(found, answering):
            await self._drain()
        await self._release()

    async def _stop(self) -> bool | None:
        """Whether the server knew the request; None where it could not be asked."""
        try:
            return decode_stopped(await self._calls.ask(self._stop_request, STOP_SECONDS, STOP_SECONDS))
        except SwiftClientError:
            return None

    async def _drain(self) -> None:
        if self._call is not None:
            await self._call.drain(END_SECONDS)

    async def _release(self) -> None:
        if self._call is not None:
            call, self._call = self._call, None
            await call.aclose()
