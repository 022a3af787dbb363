"""How is one request sent and its answer waited for? On an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic

import anyio

from swift_client.core.errors import DeadlineExceeded, ProtocolError, SwiftClientError
from swift_client.core.request import InferRequest, Request, Response
from swift_client.core.timeout import Deadline
from swift_client.transports.protocol import AsyncTransport, Limits

# Responses that may wait for a slow reader; what is beyond them stays with the transport, which holds the server back.
MOST_UNREAD = 8


class AsyncCall:
    """A task that reads one exchange into a short queue: whoever waits there may be cancelled without the call."""

    def __init__(self, transport: AsyncTransport, request: Request, connect: float | None) -> None:
        self._queue: asyncio.Queue[Response | Exception | None] = asyncio.Queue(MOST_UNREAD)
        self._task = asyncio.create_task(self._read(transport, request, Limits(connect)))

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
            while not (self._task.done() and self._queue.empty()):
                item = await self._queue.get()
                if item is None or isinstance(item, Exception):
                    return

    async def aclose(self) -> None:
        """Cancel the call if it has not ended."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _read(self, transport: AsyncTransport, request: Request, limits: Limits) -> None:
        """Whatever goes wrong is told to whoever reads: the task itself never fails."""
        end: Exception | None = None
        try:
            exchange = await transport.open_async(request, limits)
            try:
                while (response := await exchange.receive()) is not None:
                    await self._queue.put(response)
            finally:
                await exchange.close()
        except Exception as error:
            end = error
        await self._queue.put(end)


async def ask(transport: AsyncTransport, request: Request, connect: float | None, seconds: float) -> Response:
    """The answer, once its call has ended; DeadlineExceeded after so many seconds."""
    deadline = Deadline(monotonic() + seconds, "total", seconds)
    try:
        async with contextlib.aclosing(AsyncCall(transport, request, connect)) as call:
            first = rest = await call.receive(deadline)
            while rest is not None:
                rest = await call.receive(deadline)
        if first is None:
            raise ProtocolError("the server gave no answer")
    except TimeoutError:
        raise DeadlineExceeded(f"the server did not answer within {seconds:g} s", request_id=_id(request)) from None
    except SwiftClientError as error:
        error.request_id = error.request_id or _id(request)
        raise
    return first


def _id(request: Request) -> str:
    return request.request_id if isinstance(request, InferRequest) else ""
