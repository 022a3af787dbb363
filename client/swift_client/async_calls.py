"""How is one request sent and its answer waited for? On an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from time import monotonic

import anyio

from swift_client.core.errors import ProtocolError, SwiftClientError
from swift_client.core.leaving import LATE_SECONDS, no_answer
from swift_client.core.request import Request, Response, id_of
from swift_client.core.timeout import Deadline
from swift_client.transports.protocol import AsyncTransport, Limits

# Responses that may wait for a slow reader; what is beyond them stays with the transport, which holds the server back.
MOST_UNREAD = 8


async def _nothing() -> bool | None:
    """What is done when a call answers that nobody waits for any more, and needs no stop."""
    return None


class AsyncCalls:
    """All calls of a client, those that were given up before they answered included."""

    def __init__(self, transport: AsyncTransport) -> None:
        self.transport = transport
        self._tasks: set[asyncio.Task[None]] = set()

    def open(
        self, request: Request, connect: float | None, on_late: Callable[[], Awaitable[bool | None]] = _nothing
    ) -> AsyncCall:
        """Send a request. on_late: stops it when it answers after it was closed."""
        call = AsyncCall(self.transport, request, Limits(connect), on_late)
        self._tasks.add(call.task)
        call.task.add_done_callback(self._tasks.discard)
        return call

    async def ask(self, request: Request, connect: float | None, seconds: float) -> Response:
        """The one answer, once its call has ended; DeadlineExceeded after so many seconds."""
        deadline = Deadline(monotonic() + seconds, "total", seconds)
        try:
            async with contextlib.aclosing(self.open(request, connect)) as call:
                first = rest = await call.receive(deadline)
                while rest is not None:
                    rest = await call.receive(deadline)
            if first is None:
                raise ProtocolError("the server gave no answer")
        except TimeoutError:
            raise no_answer(request, seconds) from None
        except SwiftClientError as error:
            error.request_id = error.request_id or id_of(request)
            raise
        return first

    async def aclose(self) -> None:
        """Give late answers a moment, then close all connections."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LATE_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.transport.close_async()


class AsyncCall:
    """A task that reads one exchange into a short queue: whoever waits there may be cancelled without the call."""

    def __init__(
        self, transport: AsyncTransport, request: Request, limits: Limits, on_late: Callable[[], Awaitable[bool | None]]
    ) -> None:
        self._queue: asyncio.Queue[Response | Exception | None] = asyncio.Queue(MOST_UNREAD)
        self._on_late = on_late
        self._answered = self._closed = False
        self.task = asyncio.create_task(self._read(transport, request, limits))

    async def receive(self, deadline: Deadline | None) -> Response | None:
        """The next response, None at the end; TimeoutError when the deadline has passed."""
        if self._queue.empty():
            with anyio.fail_after(None if deadline is None else deadline.at - monotonic()):
                item = await self._queue.get()
        else:
            item = self._queue.get_nowait()
        if isinstance(item, Exception):
            raise item
        return item

    async def drain(self, seconds: float) -> None:
        """Read on to the end of the call, for so long at most."""
        with anyio.move_on_after(seconds):
            while not (self.task.done() and self._queue.empty()):
                item = await self._queue.get()
                if item is None or isinstance(item, Exception):
                    return

    async def aclose(self) -> None:
        """Cancel the call if it has not ended; if it has not even answered, as soon as it does. See core.leaving."""
        self._closed = True
        if self._answered or self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])

    async def _read(self, transport: AsyncTransport, request: Request, limits: Limits) -> None:
        """Whatever goes wrong is told to whoever reads: the task itself never fails."""
        end: Exception | None = None
        try:
            exchange, late = await transport.open_async(request, limits), False
            try:
                while (response := await exchange.receive()) is not None:
                    self._answered = True
                    if self._closed:
                        if not late and not await self._on_late():
                            return
                        late = True
                        continue
                    await self._queue.put(response)
            finally:
                await exchange.close()
        except Exception as error:
            end = error
        self._answered = True
        if not self._closed:
            await self._queue.put(end)
