"""How long may a call take, and each part of it?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class UseClientTimeout(Enum):
    """The type of the sentinel for "as the client was told"."""

    TOKEN = "the client's timeout"


USE_CLIENT_TIMEOUT = UseClientTimeout.TOKEN


@dataclass(frozen=True, slots=True)
class Timeout:
    """Seconds; None is no limit. Kept by the client: what is over is withdrawn from the server.

    connect: until there is a connection; over gRPC, where calls share one, the client's own. first_token: from sending
    the request, queueing and prompt included. between_tokens: from one chunk to the next. total: all of it, retries
    included. (The server's own deadline is the sampling key timeout_ms; it ends an answer early instead of failing.)

    >>> Timeout(total=30).first_token
    60.0
    >>> Timeout.unlimited()
    Timeout(connect=None, first_token=None, between_tokens=None, total=None)
    """

    connect: float | None = 5.0
    first_token: float | None = 60.0
    between_tokens: float | None = 30.0
    total: float | None = None

    @classmethod
    def unlimited(cls) -> Timeout:
        """Wait for ever."""
        return cls(None, None, None, None)


TimeoutTypes = Timeout | float | None | UseClientTimeout


def as_timeout(timeout: TimeoutTypes, clients: Timeout) -> Timeout:
    """A number is the total, with the client's other limits; None is no limit at all."""
    if isinstance(timeout, UseClientTimeout):
        return clients
    if timeout is None:
        return Timeout.unlimited()
    if isinstance(timeout, Timeout):
        return timeout
    return Timeout(clients.connect, clients.first_token, clients.between_tokens, timeout)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock, and the limit that ends there."""

    at: float
    limit: str
    seconds: float


def next_deadline(timeout: Timeout, started: float, asked: float, last_chunk: float | None) -> Deadline | None:
    """The first moment at which something is over.

    started: of the call. asked: of this attempt. last_chunk: when the latest chunk came, None before the first.
    """
    if last_chunk is None:
        waiting = (asked, "first_token", timeout.first_token)
    else:
        waiting = (last_chunk, "between_tokens", timeout.between_tokens)
    limits = [
        Deadline(since + seconds, name, seconds)
        for since, name, seconds in (waiting, (started, "total", timeout.total))
        if seconds is not None
    ]
    return min(limits, key=lambda one: one.at, default=None)
