"""Where did the end of this text occur in earlier requests? An optional memory of theirs, the latest ones first.

Off by default: what one request wrote makes another that writes the same faster, so that whoever may measure its own
time could learn what others wrote. No text of theirs is ever sent, only drafts that the full model agrees to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq

# An occurrence is looked up by so many tokens, and its length is told up to so many.
KEY, LONGEST = 4, 32


class NgramStore:
    """Texts of finished requests, as many as hold so many tokens."""

    def __init__(self, capacity: int) -> None:
        """capacity: in tokens; 0 keeps nothing."""
        self._capacity = capacity
        self._texts: deque[list[int]] = deque()
        self._size = 0
        self._places: dict[tuple[int, ...], tuple[list[int], int]] = {}

    def __len__(self) -> int:
        """Tokens that it holds."""
        return self._size

    def add(self, tokens: Seq[int]) -> None:
        """Remember a text, and forget the oldest ones for it; a text that is too long is not taken."""
        if not KEY < len(tokens) <= self._capacity:
            return
        text = list(tokens)
        while self._size + len(text) > self._capacity:
            self._forget(self._texts.popleft())
        self._texts.append(text)
        self._size += len(text)
        for end in range(KEY, len(text)):
            self._places[tuple(text[end - KEY : end])] = text, end

    def match(self, tokens: Seq[int]) -> tuple[int, list[int], int]:
        """The latest text in which the last tokens occur: how many of them, that text, and the place after them.

        (0, [], 0) where there is none.
        """
        text, end = self._places.get(tuple(tokens[-KEY:]), ([], 0))
        if not text:
            return 0, [], 0
        length = KEY
        longest = min(LONGEST, end, len(tokens))
        while length < longest and text[end - length - 1] == tokens[-length - 1]:
            length += 1
        return length, text, end

    def _forget(self, text: list[int]) -> None:
        self._size -= len(text)
        for end in range(KEY, len(text)):
            key = tuple(text[end - KEY : end])
            if self._places.get(key, (None, 0))[0] is text:
                del self._places[key]
