"""Is a failed request sent again, and after how long?"""

from __future__ import annotations

import random
from dataclasses import dataclass

from swift_client.core.errors import ConnectionFailed, SwiftClientError, Unavailable


@dataclass(frozen=True, slots=True)
class Retry:
    """Requests that found no server, or no room there, are sent again; never after the first token.

    limit: how many times. delay: seconds before the first, doubled each time, up to max_delay. Each wait is between
    half of that and all of it, so that clients that were turned away together don't come back together.

    >>> Retry(limit=0).delay_after(failures=1, chance=0.5) is None
    True
    >>> [Retry(delay=0.1).delay_after(failures=n, chance=1.0) for n in (1, 2, 3)]
    [0.1, 0.2, None]
    """

    limit: int = 2
    delay: float = 0.1
    max_delay: float = 2.0

    def delay_after(self, failures: int, chance: float) -> float | None:
        """Seconds until the next attempt, None for no more; chance: in [0, 1]."""
        if failures > self.limit:
            return None
        whole = min(self.max_delay, self.delay * 2.0 ** (failures - 1))
        return float(whole * (0.5 + 0.5 * chance))


def may_help(error: SwiftClientError) -> bool:
    """Whether the same request can fare better a moment later."""
    return isinstance(error, Unavailable | ConnectionFailed)


def draw() -> float:
    """The chance for delay_after."""
    return random.random()
