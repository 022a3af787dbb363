"""Who waits, and who is let in? First come, first served, as the cache has room."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from swift_backend.prefix_cache import PrefixCache
from swift_backend.sequence import Sequence


class Lobby:
    """Sequences without an extent, in order of arrival.

    The first in line is never overtaken, however small those behind it are; so every request gets its turn.
    """

    def __init__(self, prefixes: PrefixCache) -> None:
        self._prefixes = prefixes
        self._waiting: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait, behind the others."""
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that has ended while it waited."""
        self._waiting.remove(sequence)

    def admit(self, running: list[Sequence], max_running: int) -> None:
        """Give extents to those in front, and append them to `running`, while there are places and slots."""
        while self._waiting and len(running) < max_running and self._prefixes.reserve(self._waiting[0], running):
            running.append(self._waiting.popleft())
