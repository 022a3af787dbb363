"""HTTP with plain calls: a POST for each stream, answered with events."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import httpx

from swift_client.core.errors import Cancelled
from swift_client.core.http_body import read_answer, read_event
from swift_client.core.request import InferRequest, Request, Response
from swift_client.core.sse import EventParser
from swift_client.transports.answered import Answered
from swift_client.transports.http_options import build_request, check_answer, client_options, error_of, refusal
from swift_client.transports.protocol import Exchange, Limits, Settings


class HttpTransport:
    """A pool of connections."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: httpx.Client | None = None
        self._first = threading.Lock()
        self._closed = False
        self._streams: WeakSet[Any] = WeakSet()

    def open(self, request: Request, limits: Limits) -> Exchange:
        client = self._connected()
        try:
            outgoing = build_request(client, self._settings, request, limits)
            outgoing.extensions["trace"] = self._trace
            response = client.send(outgoing, stream=True)
            if isinstance(request, InferRequest) and check_answer(request, response):
                return _Exchange(response)
            with contextlib.closing(response):
                response.read()
        except (httpx.HTTPError, RuntimeError) as error:
            raise error_of(error) from None
        if isinstance(request, InferRequest) or not check_answer(request, response):
            raise refusal(request, response)
        return Answered(read_answer(request, response.status_code, response.text))

    def close(self) -> None:
        with self._first:
            self._closed = True
            for stream in list(self._streams):
                shut(stream)
            if self._client is not None:
                self._client.close()

    def _connected(self) -> httpx.Client:
        """Made by the first of any number of threads."""
        with self._first:
            if self._closed:
                raise Cancelled("the client is closed")
            if self._client is None:
                self._client = httpx.Client(**client_options(self._settings))
            return self._client

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """httpcore tells of each connection that it makes."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._streams.add(info["return_value"])


def shut(stream: Any) -> None:
    """A read that waits in another thread ends when the socket is shut, not when it is closed."""
    with contextlib.suppress(OSError, AttributeError):
        stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


class _Exchange:
    """An answer whose head has come; its body is read as it is asked for, and waits in the socket until then."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._body = response.iter_bytes()
        self._parser = EventParser()
        self._events: deque[str] = deque()

    def receive(self) -> Response | None:
        while not self._events:
            try:
                data = next(self._body, b"")
            except httpx.HTTPError as error:
                raise error_of(error) from None
            if not data:
                self._events.extend(self._parser.end())
                break
            self._events.extend(self._parser.feed(data))
        return read_event(self._events.popleft()) if self._events else None

    def abort(self) -> None:
        shut(self._response.extensions.get("network_stream"))

    def close(self) -> None:
        self._response.close()
