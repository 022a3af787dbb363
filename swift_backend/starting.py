"""What does a request need before it can wait for its turn? Checks and defaults, then a sequence of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import replace

from swift_backend.admission import Limits
from swift_backend.config import EngineConfig
from swift_backend.processors import make_processors
from swift_backend.sequence import Request, Sequence
from swift_backend.speculation.drafting_state import DraftingState
from swift_backend.text.stream import TextStream
from swift_backend.text.tokenizer import Tokenizer


class Starter:
    """Turns requests into sequences."""

    def __init__(
        self,
        config: EngineConfig,
        limits: Limits,
        tokenizer: Tokenizer,
        drafting: Callable[[str], DraftingState | None],
    ) -> None:
        """drafting: a new state for a way of speculating in which a policy decides, else None."""
        self._config = config
        self._limits = limits
        self._tokenizer = tokenizer
        self._drafting = drafting

    def complete(self, request: Request) -> Request:
        """The request with what the server adds to it; any thread. InvalidRequest when it can never run."""
        self._limits.check(request)
        params = request.params
        if params.timeout_ms is None and self._config.timeout_ms is not None:
            request = replace(request, params=replace(params, timeout_ms=self._config.timeout_ms))
        if params.bad_words:
            request = replace(request, bad_word_ids=self._bad_word_ids(params.bad_words))
        return request

    def sequence(self, request: Request) -> Sequence:
        """A sequence without anything that could fail to be made; see furnish."""
        params = request.params
        seed = secrets.randbits(63) if params.seed is None else params.seed
        # The policy looks at the clock; by rejection, unlike by coupling, the tokens depend on what was drafted.
        drafting = self._drafting(params.speculation) if self._config.acceptance == "coupled" else None
        return Sequence(request, self._limits.output_limit(request), seed, drafting=drafting)

    def furnish(self, sequence: Sequence, eos_ids: Collection[int]) -> None:
        """Give a sequence its text and its processors."""
        request = sequence.request
        sequence.text = TextStream(self._tokenizer, request.prompt_ids, request.params)
        sequence.processors = make_processors(request.params, request.prompt_ids, request.bad_word_ids, eos_ids)

    def _bad_word_ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Without those that no answer can hold: a tokenizer may know more ids than the model."""
        longest, size = self._limits.context_length, self._limits.vocab_size
        spelled = self._tokenizer.bad_word_ids(words)
        return tuple(ids for ids in spelled if len(ids) <= longest and max(ids) < size)
