"""Where did the end of this text occur before? Its longest suffix that did, at any length, found in constant time."""

from __future__ import annotations

from collections.abc import Iterable

# Only so many of the suffixes of a text are told of its latest end; of a text that repeats one token there are many.
MOST_SUFFIXES = 32


class SuffixAutomaton:
    """All substrings of a growing text (Blumer et al., 1985), and where each of them ended last.

    A state stands for substrings that end at the same places; its link leads to the longest suffix of them that ends
    at more. Appending a token takes constant time on average, and memory for at most two states.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]  # of the longest substring of a state
        self._end = [-1]  # where its substrings ended last, before the text's end
        self._last = 0
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self._append(token)

    def match(self) -> tuple[int, int]:
        """The longest suffix of the text that ends earlier, too: its length, and the position after its latest end.

        (0, 0) where there is none.
        """
        state = self._link[self._last]
        return (self._length[state], self._end[state] + 1) if state > 0 else (0, 0)

    def continuation(self, count: int) -> list[int]:
        """The count tokens that came after the match; the text's own end is followed by what they are."""
        length, begin = self.match()
        if not length:
            return []
        found = self.tokens[begin : begin + count]
        period = len(self.tokens) - begin
        while len(found) < count:
            found.append(found[-period])
        return found

    def _append(self, token: int) -> None:
        self._note_ends()
        current = self._state(self._length[self._last] + 1, {}, 0, len(self.tokens))
        self.tokens.append(token)
        state = self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = current
            state = self._link[state]
        if state >= 0:
            self._link[current] = self._suffix(state, token)
        self._last = current

    def _suffix(self, state: int, token: int) -> int:
        """The state of the longest substring of `state` with the token after it, and of nothing longer."""
        found = self._next[state][token]
        length = self._length[state] + 1
        if self._length[found] == length:
            return found
        split = self._state(length, dict(self._next[found]), self._link[found], self._end[found])
        while state >= 0 and self._next[state].get(token) == found:
            self._next[state][token] = split
            state = self._link[state]
        self._link[found] = split
        return split

    def _state(self, length: int, following: dict[int, int], link: int, end: int) -> int:
        self._length.append(length)
        self._next.append(following)
        self._link.append(link)
        self._end.append(end)
        return len(self._length) - 1

    def _note_ends(self) -> None:
        """The text's suffixes end here; noted when the text goes on, since a match is an earlier end."""
        state, end = self._link[self._last], len(self.tokens) - 1
        for _ in range(MOST_SUFFIXES):
            if state <= 0:
                return
            self._end[state] = end
            state = self._link[state]
