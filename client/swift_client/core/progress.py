"""What can be seen of an answer while it comes, and when it is there?"""

from __future__ import annotations

from swift_client.core.generation import Generation
from swift_client.core.results import FinishReason, SpeculationStats, Timing, Usage


class Progress:
    """What the streams of both clients show of their generation."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    @property
    def request_id(self) -> str:
        """What the server calls it."""
        return self._generation.request.request_id

    @property
    def text(self) -> str:
        """All of it so far."""
        return self._generation.text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All of them so far."""
        return self._generation.token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """None before the end; "cancelled" where it was left."""
        return self._generation.finish_reason

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        return self._generation.usage

    @property
    def speculation(self) -> SpeculationStats:
        """Drafted and accepted tokens so far."""
        return self._generation.speculation

    @property
    def timing(self) -> Timing:
        """Time to the first and to the latest chunk."""
        return self._generation.timing
