"""Which tokens are likely enough to be drafted? Counted in the traffic; the first ones of the vocabulary until then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

# A prompt's token says less of what is answered than an answer's.
PROMPT_WEIGHT = 0.2
# Counts are halved when there are so many, so that a change of traffic is noticed, and so many tokens are kept.
MOST_COUNTED, MOST_TOKENS = 2_000_000, 32_768
# An eighth of the vocabulary is scored, or so many tokens where that is more; all of it where that saves little.
LEAST_SIZE, SHARE, MOST_SHARE = 16_384, 1 / 8, 0.6


def draft_vocabulary_size(vocab_size: int, asked: int | None) -> int:
    """How many tokens draft passes score; 0 for all. asked: what the operator says, None for what is usual."""
    size = max(LEAST_SIZE, round(SHARE * vocab_size)) if asked is None else asked
    return size if size <= MOST_SHARE * vocab_size else 0


class TokenCounts:
    """How often each token was there, of late.

    total: of all counts. noted: how much was counted in this process, which never falls.
    """

    def __init__(self) -> None:
        self.noted = 0.0
        self.total = 0.0
        self._counts: dict[int, float] = {}

    def note(self, prompt: Iterable[int], answer: Iterable[int]) -> None:
        """Count the tokens of a request."""
        for weight, tokens in ((PROMPT_WEIGHT, prompt), (1.0, answer)):
            for token, count in Counter(tokens).items():
                self._counts[token] = self._counts.get(token, 0.0) + weight * count
                self.total += weight * count
                self.noted += weight * count
        if self.total > MOST_COUNTED:
            self._counts = {token: count / 2 for token, count in self._counts.items()}
            self.total /= 2

    def likeliest(self, size: int, always: Iterable[int], vocab_size: int) -> list[int]:
        """`size` tokens below vocab_size: those in `always`, the most frequent ones, and the first ones.

        Byte-pair vocabularies are in the order of their merges, so that the first ones are frequent in general.
        """
        chosen = dict.fromkeys(always)
        for token, _ in self._ranked():
            if len(chosen) >= size:
                break
            if token < vocab_size:  # a file may be of another model
                chosen.setdefault(token)
        token = 0
        while len(chosen) < size:
            chosen.setdefault(token)
            token += 1
        return list(chosen)

    def _ranked(self) -> list[tuple[int, float]]:
        """Tokens and their counts, the most frequent first, of equal ones the lowest."""
        return sorted(self._counts.items(), key=lambda one: (-one[1], one[0]))

    def merge(self, other: TokenCounts) -> None:
        """Take over what another process has counted, where nothing is known yet."""
        if not self.total:
            self._counts, self.total = dict(other._counts), other.total

    def to_content(self) -> list[list[float]]:
        """For a JSON document: tokens and their counts."""
        return [[token, round(count, 1)] for token, count in self._ranked()[:MOST_TOKENS]]

    @classmethod
    def from_content(cls, content: Any) -> TokenCounts:
        """What to_content told of; ValueError for anything that it cannot have."""
        counts = cls()
        for one in content:
            if not isinstance(one, list) or len(one) != 2:
                raise ValueError("a count must be of a token")
            token, count = one
            if type(token) is not int or type(count) not in (int, float) or token < 0 or not 0 <= count < 1e12:
                raise ValueError("a token and its count must be numbers, and none below zero")
            counts._counts[token] = count
        counts.total = sum(counts._counts.values())
        return counts
