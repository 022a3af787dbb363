"""What does drawing a token cost, beside the pass that scores it? For sampling, noise over the vocabulary."""

from __future__ import annotations

MEMORY = 0.9


class DrawCost:
    """Seconds of drawing a row with a temperature, of late; greedy rows are taken to cost nothing."""

    def __init__(self) -> None:
        self._seconds = self._rows = 0.0

    @property
    def seconds(self) -> float:
        """Of a row; 0 before one was drawn."""
        return self._seconds / self._rows if self._rows else 0.0

    def note(self, seconds: float, rows: int) -> None:
        """A step drew so many rows with a temperature; without any, it says nothing."""
        if rows:
            self._seconds = MEMORY * self._seconds + seconds
            self._rows = MEMORY * self._rows + rows
