"""What does a client need of a way to a server? One method, in a plain and in an asyncio form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from swift_client.core.endpoint import Endpoint
from swift_client.core.request import Request, Response
from swift_client.core.tls import TLS


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that a transport keeps itself, None for no limit: until it is connected.

    The rest of a call's Timeout is its caller's business, who aborts.
    """

    connect: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What both transports to a server are made of; connect: seconds, where calls share a connection."""

    endpoint: Endpoint
    headers: Mapping[str, str]
    tls: TLS
    connect: float | None
    metrics_url: str
    metrics_headers: Mapping[str, str]


class Exchange(Protocol):
    """One request under way. Its errors are SwiftClientErrors, without the request's id."""

    def receive(self) -> Response | None:
        """The next response, None at the end of the call."""

    def abort(self) -> None:
        """From any thread: a `receive` that waits, and any later one, ends with an error at once."""

    def close(self) -> None:
        """Let go of it, read to its end or not."""


class Transport(Protocol):
    """A way to a server, for any number of requests at a time on any threads."""

    def open(self, request: Request, limits: Limits) -> Exchange:
        """Send a request; raises a SwiftClientError."""

    def close(self) -> None:
        """Close all connections."""


class AsyncExchange(Protocol):
    """The same on an event loop; whoever waits in `receive` is cancelled instead of aborting."""

    async def receive(self) -> Response | None:
        """The next response, None at the end of the call."""

    async def close(self) -> None:
        """Let go of it, read to its end or not."""


class AsyncTransport(Protocol):
    """A way to a server, for any number of requests at a time on one event loop."""

    async def open_async(self, request: Request, limits: Limits) -> AsyncExchange:
        """Send a request; raises a SwiftClientError."""

    async def close_async(self) -> None:
        """Close all connections."""
