"""How likely is it that a drafted token counts? Running shares, by what is known of it before it is verified."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from swift_backend.speculation.pool_entries import CONFIDENCE_EDGES

# Matches of length 1, 2, 3, 4–5, 6–9, 10–15 and more, and what is taken for their chance before there is evidence.
LENGTH_EDGES = (2, 3, 4, 6, 10, 16)
LENGTH_PRIORS = (0.15, 0.35, 0.5, 0.6, 0.75, 0.85, 0.9)
# A request's own matches count beside so many of all requests.
OWN_PRIOR_WEIGHT = 6.0
OWN_MEMORY, MEMORY = 0.97, 0.999
PRIOR_WEIGHT = 16.0
# Of what the draft's favourite leaves, the second one is taken to have half, the third one a fifth.
RANK_PRIORS = (0.5, 0.2)


@dataclass(slots=True)
class Shares:
    """Counts of trials and successes in some buckets, which fade with each trial in them."""

    memory: float
    tried: list[float]
    right: list[float]

    @classmethod
    def of(cls, buckets: int, memory: float) -> Shares:
        return cls(memory, [0.0] * buckets, [0.0] * buckets)

    def note(self, bucket: int, right: bool) -> None:
        """Count a trial."""
        self.tried[bucket] = self.memory * self.tried[bucket] + 1
        self.right[bucket] = self.memory * self.right[bucket] + right

    def share(self, bucket: int, prior: float, weight: float) -> float:
        """Of successes; the prior counts as so many trials."""
        return (self.right[bucket] + prior * weight) / (self.tried[bucket] + weight)


def no_matches() -> Shares:
    """Of n-gram matches by their length: for all requests."""
    return Shares.of(len(LENGTH_PRIORS), MEMORY)


@dataclass(slots=True)
class MatchChances:
    """How often what came after an earlier occurrence came again, by the occurrence's length.

    everyone: of all requests, which speak for one that has no matches yet.
    """

    everyone: Shares
    own: Shares = field(default_factory=lambda: Shares.of(len(LENGTH_PRIORS), OWN_MEMORY))

    def chance(self, length: int) -> float:
        """Of a token after so many that agree."""
        bucket = bisect_right(LENGTH_EDGES, length)
        common = self.everyone.share(bucket, LENGTH_PRIORS[bucket], PRIOR_WEIGHT)
        return self.own.share(bucket, common, OWN_PRIOR_WEIGHT)

    def note(self, length: int, right: bool) -> None:
        """Learn what became of such a token."""
        bucket = bisect_right(LENGTH_EDGES, length)
        self.everyone.note(bucket, right)
        self.own.note(bucket, right)


class RankChances:
    """How often the full model's token is the draft's second or third favourite, by how sure it is of the first."""

    def __init__(self) -> None:
        self._shares = [Shares.of(len(CONFIDENCE_EDGES) + 1, MEMORY) for _ in RANK_PRIORS]

    def chance(self, rank: int, confidence: float) -> float:
        """rank: 1 for the second favourite."""
        prior = RANK_PRIORS[rank - 1] * (1 - min(max(confidence, 0.0), 1.0))
        return self._shares[rank - 1].share(bisect_right(CONFIDENCE_EDGES, confidence), prior, PRIOR_WEIGHT)

    def note(self, favourites: tuple[int, ...], confidence: float, token: int) -> None:
        """Learn which of the favourites, if any, the full model's token was."""
        for rank in range(1, min(len(favourites), len(RANK_PRIORS) + 1)):
            self._shares[rank - 1].note(bisect_right(CONFIDENCE_EDGES, confidence), favourites[rank] == token)


@dataclass(slots=True)
class OwnChance:
    """How often something held in a request, of late; what is known from elsewhere counts as some trials."""

    tried: float = 0.0
    right: float = 0.0
    weight: float = 5.0
    memory: float = 0.95

    def note(self, right: bool) -> None:
        """Learn whether it held."""
        self.tried = self.memory * self.tried + 1
        self.right = self.memory * self.right + right

    def chance(self, prior: float) -> float:
        """Of the next trial."""
        return (self.right + prior * self.weight) / (self.tried + self.weight)
