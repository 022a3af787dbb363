"""Who runs in this step, and with how many tokens? Plain integers: no tensors, no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swift_backend.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Work:
    """A sequence's part of a step: num_tokens known tokens to compute, and room for a draft after them."""

    sequence: Sequence
    num_tokens: int
    draft_budget: int

    @property
    def reaches_end(self) -> bool:
        """Whether the last known token is computed, so that the next one can be drawn."""
        return self.sequence.kv_len + self.num_tokens == len(self.sequence.tokens)


def plan_step(running: Iterable[Sequence], budget: int, max_draft_tokens: int) -> list[Work]:
    """Share the step's token budget; sequences that come first in `running` are served first.

    A sequence wants the tokens it has not computed, plus its draft. Every decoding sequence gets its one token before
    any prompt gets a chunk, so that a long prompt holds nobody up, and a token is kept back for prompts, so that
    many decoding sequences do not starve them. Drafts get what is left.
    """
    sequences = list(running)
    decoding = [s for s in sequences if not s.prefilling]
    prompts = [s for s in sequences if s.prefilling]
    decoding = decoding[: budget - 1 if prompts else budget]
    budget -= len(decoding)
    chunks: list[Work] = []
    for sequence in prompts:
        granted = min(len(sequence.tokens) - sequence.kv_len, budget)
        if granted:
            chunks.append(Work(sequence, granted, 0))
            budget -= granted
    steps: list[Work] = []
    for sequence in decoding:
        draft = min(draft_limit(sequence, max_draft_tokens), budget)
        steps.append(Work(sequence, 1, draft))
        budget -= draft
    return steps + chunks


def draft_limit(sequence: Sequence, max_draft_tokens: int) -> int:
    """γ for this round: a draft never exceeds what may still be committed beside the full model's own token."""
    if not sequence.may_draft:
        return 0
    asked = sequence.params.max_draft_tokens
    return min(max_draft_tokens if asked is None else asked, sequence.remaining - 1)
