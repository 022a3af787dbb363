"""How fast would drafting along a known text have been? Rounds played through with a trial's matches and costs."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """In times of a plain token: draft is a draft pass (c), verify[k] a full pass over k drafted tokens and a row."""

    draft: float
    verify: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """tokens committed in `rounds` that took so many times a plain token; drafted and accepted among them."""

    tokens: int = 0
    rounds: int = 0
    time: float = 0.0
    drafted: int = 0
    accepted: int = 0

    @property
    def speed_up(self) -> float:
        """Tokens per second over plain decoding; 1 where nothing was played."""
        return self.tokens / self.time if self.time else 1.0

    @property
    def alpha(self) -> float:
        """Accepted over drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def __add__(self, other: Rehearsal) -> Rehearsal:
        return Rehearsal(
            self.tokens + other.tokens,
            self.rounds + other.rounds,
            self.time + other.time,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )


def rehearse(matches: Seq[bool], confidence: Seq[float], costs: Costs, most: int, threshold: float) -> Rehearsal:
    """Play drafts of up to `most` tokens along consecutive positions, as LayerSkipDrafter makes them.

    matches[i], confidence[i]: of the token after position i. A draft ends before a token whose confidence is below the
    threshold, which costs its pass all the same. What a later draft token saw of earlier ones is taken for what the
    full model would have left there.
    """
    position = tokens = rounds = drafted = accepted = 0
    time = 0.0
    while position < len(matches):
        room = min(most, len(matches) - position - 1)
        length = passes = 0
        while length < room:
            passes += 1
            if confidence[position + length] < threshold:
                break
            length += 1
        right = next((i for i in range(length) if not matches[position + i]), length)
        rounds += 1
        drafted += length
        accepted += right
        tokens += right + 1
        time += passes * costs.draft + costs.verify[length]
        position += right + 1
    return Rehearsal(tokens, rounds, time, drafted, accepted)


def best_rehearsal(
    trials: Iterable[tuple[Seq[bool], Seq[float]]], costs: Costs, thresholds: Seq[float]
) -> tuple[Rehearsal, int, float]:
    """The fastest way to draft along all texts, with its draft length and threshold; it may be slower than not to."""
    texts = list(trials)

    def play(most: int, threshold: float) -> Rehearsal:
        return sum((rehearse(*text, costs, most, threshold) for text in texts), Rehearsal())

    played = [(play(most, one), most, one) for most in range(1, len(costs.verify)) for one in thresholds]
    return max(played, key=lambda entry: entry[0].speed_up)
