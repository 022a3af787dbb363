"""How likely is what a layer set says? By the pool's evidence, for a text and for a token."""

from __future__ import annotations

from typing import Protocol

from swift_backend.sequence import Sequence
from swift_backend.speculation.pool import Pool
from swift_backend.speculation.pool_entries import PRIOR_ALPHA

# A set that is new: a draft is about as often right as it says; this counts as so many tokens as sure as it.
CALIBRATION_WEIGHT = 4.0
LATER_WEIGHT = 8.0


class Odds(Protocol):
    """What a policy asks of draft tokens that layer skipping would make."""

    def first(self, sequence: Sequence, skip_mask: int) -> float:
        """The expected acceptance on a text, before its own drafts say more."""
        ...

    def later(self, skip_mask: int) -> float:
        """That of a token all before which were accepted."""
        ...

    def sure(self, skip_mask: int, confidence: float, *, first: bool) -> float:
        """That of a token which is known, by the draft's confidence."""
        ...


class PoolOdds:
    """Odds by what the pool knows of each set."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def first(self, sequence: Sequence, skip_mask: int) -> float:
        """See Odds; looks through all records."""
        if sequence.profile is None:
            return PRIOR_ALPHA
        return self._pool.expected_alpha(skip_mask, sequence.profile)

    def later(self, skip_mask: int) -> float:
        """See Odds."""
        arm = self._pool.arm(skip_mask)
        return PRIOR_ALPHA if arm is None else arm.later.alpha(arm.alpha, LATER_WEIGHT)

    def sure(self, skip_mask: int, confidence: float, *, first: bool) -> float:
        """See Odds."""
        arm = self._pool.arm(skip_mask)
        if arm is None:
            return max(confidence, 0.0)
        return (arm.first if first else arm.later).alpha_at(confidence, confidence, CALIBRATION_WEIGHT)
