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

# It is made anew once so many tokens have been counted, or as many as before, up to the most; an engine that is never
# idle waits for eight times as many.
LEAST_NEWS, MOST_NEWS, BUSY = 2_000.0, 200_000.0, 8.0
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
        self._noted = tokens.noted
        if size:
            self._make()

    def tick(self, idle: bool) -> None:
        """Make it anew if there is much new; idle: nobody waits for the engine."""
        news = (self._tokens.noted - self._noted) / (1 if idle else BUSY)
        if self._size and news >= min(max(LEAST_NEWS, self._noted), MOST_NEWS):
            self._make()

    def _make(self) -> None:
        """The likeliest tokens as things are; where there is no memory for it, drafts do without from now on."""
        started = perf_counter()
        decoder, passes = self._runner.decoder, self._passes
        vocabulary = decoder.config.vocab_size
        self._noted = self._tokens.noted
        passes.short_head, self._costs.short_head = None, 1.0  # before there are two
        try:
            ids = self._tokens.likeliest(self._size, self._always, vocabulary)
            short = ShortHead.of(decoder.head, vocabulary, decoder.embedding.dtype, ids, decoder.kernels)
        except (MemoryError, RuntimeError):
            _log.warning("there is no memory for a short head, drafts score all tokens", exc_info=True)
            self._size = 0
            return
        passes.short_head, self._costs.short_head = short, short.share
        size, seconds = short.num_bytes / 1e6, perf_counter() - started
        _log.info("draft passes score %d of %d tokens (%.0f MB, made in %.2f s)", len(ids), vocabulary, size, seconds)
