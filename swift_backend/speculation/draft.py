"""What is a draft, and who makes one?"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch

from swift_backend.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed for the next positions of a sequence; empty means "no idea", which is normal.

    probs: for each token the distribution, float64 [vocab], that it was drawn from; None for drafts that were found
    rather than drawn, and where acceptance does not need it. seconds: this sequence's share of the drafting time.
    passes: how many draft passes the sequence was in; one more than tokens where the last one was too unsure.
    drafter: who made it, in the metrics. skip_mask: the sublayers that those passes left out. confidences: each
    token's probability by the draft, where it has one.
    """

    token_ids: tuple[int, ...] = ()
    probs: tuple[torch.Tensor, ...] | None = None
    seconds: float = 0.0
    passes: int = 0
    drafter: str = "other"
    skip_mask: int = 0
    confidences: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def skipped_sublayers(self) -> int:
        """How many sublayers its passes left out."""
        return self.skip_mask.bit_count()


class Drafter(Protocol):
    """Proposes tokens; never sees requests' outcomes, Triton or configuration."""

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int]) -> list[Draft]:
        """One draft per sequence, at most budgets[i] tokens long."""
        ...
