"""HTTP on an event loop: a POST for each stream, answered with events."""

from __future__ import annotations

import contextlib
from collections import deque

import httpx

from swift_client.core.http_body import read_answer, read_event
from swift_client.core.request import InferRequest, Request, Response
from swift_client.core.sse import EventParser
from swift_client.transports.answered import AsyncAnswered
from swift_client.transports.http_options import build_request, check_answer, client_options, error_of, refusal
from swift_client.transports.protocol import AsyncExchange, Limits, Settings


class AsyncHttpTransport:
    """A pool of connections; they belong to the event loop on which they are first used."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: httpx.AsyncClient | None = None

    async def open_async(self, request: Request, limits: Limits) -> AsyncExchange:
        if self._client is None:
            self._client = httpx.AsyncClient(**client_options(self._settings))
        outgoing = build_request(self._client, self._settings, request, limits)
        try:
            response = await self._client.send(outgoing, stream=True)
            if isinstance(request, InferRequest) and check_answer(request, response):
                return _Exchange(response)
            async with contextlib.aclosing(response):
                await response.aread()
        except (httpx.HTTPError, RuntimeError) as error:
            raise error_of(error) from None
        if isinstance(request, InferRequest) or not check_answer(request, response):
            raise refusal(request, response)
        return AsyncAnswered(read_answer(request, response.status_code, response.text))

    async def close_async(self) -> None:
        if self._client is not None:
            await self._client.aclose()


class _Exchange:
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._body = response.aiter_bytes()
        self._parser = EventParser()
        self._events: deque[str] = deque()

    async def receive(self) -> Response | None:
        while not self._events:
            try:
                data = await anext(self._body, b"")
            except httpx.HTTPError as error:
                raise error_of(error) from None
            if not data:
                self._events.extend(self._parser.end())
                break
            self._events.extend(self._parser.feed(data))
        return read_event(self._events.popleft()) if self._events else None

    async def close(self) -> None:
        await self._response.aclose()
