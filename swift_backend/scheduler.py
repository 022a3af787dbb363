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
    """Grant each sequence, in order, what it wants of the step's token budget.

    A sequence wants the tokens it has not computed, plus its draft. Decoding sequences come first: they want one
    token each, and a long prompt must not hold them up.
    """
    plan: list[Work] = []
    for sequence in sorted(running, key=lambda s: s.prefilling):
        wanted = len(sequence.tokens) - sequence.kv_len
        granted = min(wanted, budget)
        if granted == 0:
            continue
        budget -= granted
        draft = 0 if sequence.prefilling else min(draft_limit(sequence, max_draft_tokens), budget)
        budget -= draft
        plan.append(Work(sequence, granted, draft))
    return plan


def draft_limit(sequence: Sequence, max_draft_tokens: int) -> int:
    """γ for this round: a draft never exceeds what may still be committed beside the full model's own token."""
    if not sequence.may_draft:
        return 0
    asked = sequence.params.max_draft_tokens
    return min(max_draft_tokens if asked is None else asked, sequence.remaining - 1)
