"""What is kept of a layer set, and of a request that drafted with it? Counts, and how they read in a file."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

# Bucket i holds draft tokens whose probability is in [edge i - 1, edge i).
CONFIDENCE_EDGES = (0.5, 0.65, 0.8, 0.9, 0.95)
# What is taken for an arm's acceptance before there is evidence, and how many tokens that counts as.
PRIOR_ALPHA = 0.7
PRIOR_WEIGHT = 8.0

_T = TypeVar("_T")


def _no_tokens() -> list[float]:
    return [0.0] * (len(CONFIDENCE_EDGES) + 1)


@dataclass(slots=True)
class Evidence:
    """Draft tokens, and those of them that were accepted, by how sure the draft was: a count for each bucket."""

    drafted: list[float] = field(default_factory=_no_tokens)
    accepted: list[float] = field(default_factory=_no_tokens)

    def note(self, confidence: float, accepted: bool) -> None:
        """Count a token that was drafted with this probability."""
        bucket = bisect_right(CONFIDENCE_EDGES, confidence)
        self.drafted[bucket] += 1
        self.accepted[bucket] += accepted

    def fade(self, factor: float) -> None:
        """Count what is known a little less."""
        self.drafted = [factor * count for count in self.drafted]
        self.accepted = [factor * count for count in self.accepted]

    def alpha(self, prior_alpha: float, prior_weight: float) -> float:
        """The share of tokens that were accepted; the prior counts as prior_weight tokens."""
        return _share(sum(self.accepted), sum(self.drafted), prior_alpha, prior_weight)

    def alpha_at(self, confidence: float, prior_alpha: float, prior_weight: float) -> float:
        """The same of tokens about as sure as this one."""
        bucket = bisect_right(CONFIDENCE_EDGES, confidence)
        return _share(self.accepted[bucket], self.drafted[bucket], prior_alpha, prior_weight)


def _share(accepted: float, drafted: float, prior_alpha: float, prior_weight: float) -> float:
    weight = drafted + prior_weight
    return (accepted + prior_alpha * prior_weight) / weight if weight else prior_alpha


@dataclass(slots=True)
class Arm:
    """A layer set, and how it did as the first draft token of a round and as a later one.

    A later token counts only where all before it were accepted. origin: who proposed it, as "shipped", "similarity",
    "search" or "knapsack".
    """

    skip_mask: int
    origin: str
    first: Evidence = field(default_factory=Evidence)
    later: Evidence = field(default_factory=Evidence)

    @property
    def drafted(self) -> float:
        """How many tokens speak for or against it."""
        return sum(self.first.drafted) + sum(self.later.drafted)

    @property
    def alpha(self) -> float:
        """The share of all its tokens that were accepted, with a prior."""
        accepted = sum(self.first.accepted) + sum(self.later.accepted)
        return _share(accepted, self.drafted, PRIOR_ALPHA, PRIOR_WEIGHT)


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A finished request: how a layer set did on its text, and what its prompt did to the hidden states."""

    skip_mask: int
    drafted: float
    accepted: float
    profile: torch.Tensor  # float32 [n], see similarity.Profile


def parse_arm(content: Any, num_layers: int) -> Arm:
    first, later = (_evidence(part(content, name, dict)) for name in ("first", "later"))
    return Arm(_mask(content, num_layers), part(content, "origin", str), first, later)


def _evidence(content: Any) -> Evidence:
    drafted, accepted = (_numbers(part(content, name, list), least=0) for name in ("drafted", "accepted"))
    if not len(drafted) == len(accepted) == len(CONFIDENCE_EDGES) + 1:
        raise ValueError(f"evidence must have {len(CONFIDENCE_EDGES) + 1} buckets")
    if any(right > every for right, every in zip(accepted, drafted, strict=True)):
        raise ValueError("more tokens are accepted than drafted")
    return Evidence(drafted, accepted)


def parse_record(content: Any, num_layers: int) -> Record:
    values = [content.get(name) if isinstance(content, dict) else None for name in ("drafted", "accepted")]
    drafted, accepted = _numbers(values, least=0)
    if not 0 < drafted >= accepted:
        raise ValueError("a record must have drafted tokens, and no more accepted ones")
    profile = torch.tensor(_numbers(part(content, "profile", list)), dtype=torch.float32)
    return Record(_mask(content, num_layers), drafted, accepted, profile)


def _mask(content: Any, num_layers: int) -> int:
    text = part(content, "skip_mask", str)
    try:
        skip_mask = int(text, 16)
    except ValueError:
        raise ValueError("skip_mask must be hexadecimal") from None
    if not 0 <= skip_mask < 1 << 2 * num_layers:
        raise ValueError(f"skip_mask must be of {2 * num_layers} bits")
    return skip_mask


def _numbers(values: list[Any], least: float = -math.inf) -> list[float]:
    """Finite numbers of float32's range, and at least `least`."""
    most = torch.finfo(torch.float32).max
    if not all(type(value) in (int, float) and max(least, -most) <= value <= most for value in values):
        raise ValueError("a number is out of range, or is none")
    return [float(value) for value in values]


def part(content: Any, name: str, kind: type[_T]) -> _T:
    """content[name], if it is of this type."""
    value = content.get(name) if isinstance(content, dict) else None
    if type(value) is not kind:
        raise ValueError(f"{name} must be of type {kind.__name__}")
    return value
