"""Which drafted tokens are worth a row of the next full pass? Those whose chance of counting is worth its time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that could be verified.

    chance: that it and all before it are accepted. owner: whose draft it belongs to; depth: how many tokens of that
    draft come before it; sibling: it is an alternative to that draft's own token there.
    """

    chance: float
    owner: int
    depth: int
    token_id: int
    drafter: str
    sibling: bool = False


def worth_verifying(candidates: Seq[Candidate], seconds: Seq[float], price: float) -> list[Candidate]:
    """The candidates, likeliest first, that bring most: their chances, less the time that their rows take.

    seconds[k]: of a pass with k of them, at least one long; what it has no entry for is left out. price: the tokens
    that a second is worth. A row's time is not the same for each: kernels work on blocks of rows, so that a single row
    may not pay where five do. A chosen token's predecessors are chosen, too: they are at least as likely, and come
    first where they are equally so.
    """
    ranked = sorted(candidates, key=lambda one: (-one.chance, one.depth, one.sibling))[: len(seconds) - 1]
    count = most_worthwhile((one.chance for one in ranked), lambda k: price * (seconds[k] - seconds[0]))
    return ranked[:count]


def most_worthwhile(gains: Iterable[float], cost: Callable[[int], float]) -> int:
    """How many of the gains, the highest first, are most above the cost of taking so many; 0 where none is."""
    best, count, gained = 0.0, 0, 0.0
    for k, gain in enumerate(gains, 1):
        gained += gain
        value = gained - cost(k)
        if value > best:
            best, count = value, k
    return count
