"""Who runs in this step, and with how many tokens? Plain integers: no tensors, no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from swift_backend.sequence import Sequence

# γ of the guide, where a request does not say how long its drafts may be and no policy decides.
GUIDE_DRAFT = 5
# A window and branches need rows more than a chain does.
WIDE_MODES = ("lookahead",)
# A prompt moves on by so many tokens a step, however dear they are.
LEAST_CHUNK = 8


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


class Pace(Protocol):
    """What the costs of passes say about a step: see pace.MeasuredPace."""

    def draft_limit(self, decoding: list[Sequence], chunks: list[Work], num_drafting: int, most: int) -> int:
        """The longest draft, at most `most`, in a step in which so many of the decoding sequences draft."""
        ...

    def chunk(self, decoding: list[Sequence], chunks: list[Work], prompts: list[Sequence]) -> int:
        """How many tokens of the first of these prompts can join a step that has the rest already."""
        ...


def plan_step(running: Iterable[Sequence], budget: int, max_draft_tokens: int, pace: Pace) -> list[Work]:
    """Share the step's token budget; sequences that come first in `running` are served first.

    A sequence wants the tokens it has not computed, plus its draft. Every decoding sequence gets its one token before
    any prompt gets a chunk, so that a long prompt holds nobody up, and a token is kept back for prompts, so that
    many decoding sequences do not starve them. Drafts get what is left. A paused sequence gets nothing.
    """
    sequences = [s for s in running if not s.paused]
    decoding = [s for s in sequences if not s.prefilling]
    prompts = [s for s in sequences if s.prefilling]
    decoding = decoding[: budget - 1 if prompts else budget]
    budget -= len(decoding)
    chunks: list[Work] = []
    for i, sequence in enumerate(prompts):
        allowed = max(pace.chunk(decoding, chunks, prompts[i:]), 0 if chunks else LEAST_CHUNK)
        granted = min(len(sequence.tokens) - sequence.kv_len, budget, allowed)
        if granted:
            chunks.append(Work(sequence, granted, 0))
            budget -= granted
    limits = [draft_limit(sequence, max_draft_tokens) for sequence in decoding]
    fixed = [limit for sequence, limit in zip(decoding, limits, strict=True) if sequence.drafting is None]
    longest = pace.draft_limit(decoding, chunks, sum(limit > 0 for limit in fixed), max_draft_tokens)
    steps: list[Work] = []
    for sequence, limit in zip(decoding, limits, strict=True):
        draft = min(limit, budget) if sequence.drafting is not None else min(limit, longest, budget)
        steps.append(Work(sequence, 1, draft))
        budget -= draft
    return steps + chunks


def draft_limit(sequence: Sequence, max_draft_tokens: int) -> int:
    """How many tokens may be drafted in this round: never more than may be committed beside the full model's own."""
    if not sequence.may_draft:
        return 0
    wide = sequence.drafting is not None or sequence.params.speculation in WIDE_MODES
    usual = max_draft_tokens if wide else min(GUIDE_DRAFT, max_draft_tokens)
    asked = sequence.params.max_draft_tokens
    return min(usual if asked is None else asked, sequence.remaining - 1)
