"""Which tokens do draft passes score, and when is that looked at anew? A short head, made when nobody waits."""

from __future__ import annotations

import logging
from collections.abc import Collection
from time import perf_counter

from swift_backend.model.short_head import ShortHead
from swift_backend.runner import Runner
from swift_backend.speculation.cost_model import CostModel
from swift_backend.speculation.draft_passes import DraftPasses
from swift_backend.speculation.draft_vocabulary import TokenCounts

# It is made anew once there are so many new tokens, and as many as there were.
LEAST_NEWS = 2000.0
_log = logging.getLogger(__name__)


class DraftHead:
    """Gives draft passes their short head, and keeps it up with the traffic."""

    def __init__(
        self,
        passes: DraftPasses,
        runner: Runner,
        costs: CostModel,
        tokens: TokenCounts,
        size: int,
        always: Collection[int],
    ) -> None:
        """size: how many tokens it scores, 0 for no short head; always: tokens that are never left out."""
        self._passes, self._runner, self._costs, self._tokens = passes, runner, costs, tokens
        self._size, self._always = size, always
        self._counted = 0.0
        if size:
            self._make()

    def tick(self, idle: bool) -> None:
        """Make it anew if there is much new; idle: nobody waits for the engine."""
        news = self._tokens.total - self._counted
        if self._size and idle and news >= max(LEAST_NEWS, self._counted):
            self._make()

    def _make(self) -> None:
        started = perf_counter()
        decoder = self._runner.decoder
        ids = self._tokens.likeliest(self._size, self._always)
        self._counted = self._tokens.total
        self._passes.short_head = None  # before there are two
        short = ShortHead.of(decoder.head, decoder.config.vocab_size, decoder.embedding.dtype, ids)
        self._passes.short_head, self._costs.short_head = short, short.share
        _log.info(
            "draft passes score %d of %d tokens (%.0f MB, made in %.2f s)",
            len(ids), decoder.config.vocab_size, short.num_bytes / 1e6, perf_counter() - started,
        )  # fmt: skip
