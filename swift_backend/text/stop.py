"""Where the text ends because a stop string is complete, and how much of it may be sent before that is known."""

from collections.abc import Sequence


class StopMatcher:
    """Searches a text that arrives in pieces for stop strings.

    The string that is complete first ends the text, the longest if two end together; so the result depends on the text
    only, never on how it was cut into pieces. After the match nothing more is returned.
    """

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        """`stops` are non-empty strings; `include` keeps the matched one in the text."""
        assert all(stops), "an empty stop string would match everywhere"
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self._matched = False

    def push(self, text: str, *, may_stop: bool = True) -> tuple[str, bool]:
        """Takes the next piece; returns what may be sent now and whether a stop string is complete.

        A stop string that ends in a piece with may_stop false does not count.
        """
        if self._matched:
            return "", True
        if not self._stops:
            return text, False
        num_old = len(self._held)
        text = self._held + text
        end = self._end_of_match(text, num_old) if may_stop else None
        if end is not None:
            self._held, self._matched = "", True
            return text[:end], True
        held = self._num_held(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def flush(self) -> str:
        """What is held back, for a text that ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _end_of_match(self, text: str, num_old: int) -> int | None:
        """How much of `text` stays if a stop string is complete in it and ends after the first num_old characters."""
        firsts = [(stop, text.find(stop, max(0, num_old + 1 - len(stop)))) for stop in self._stops]
        found = [(start + len(stop), start) for stop, start in firsts if start >= 0]
        if not found:
            return None
        end, start = min(found)
        return end if self._include else start

    def _num_held(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for num in range(longest, 0, -1):
            if any(stop.startswith(text[-num:]) for stop in self._stops):
                return num
        return 0
