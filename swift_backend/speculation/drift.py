"""How far are passes now from what was measured once? A factor for each number of rows, learnt from passes."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field

# How much of an error a number of rows takes for its own; the rest is the machine's, see CostModel.scale.
RATE = 0.02


@dataclass(slots=True)
class Drift:
    """Factors at some numbers of rows, a line between their logarithms, and the outermost ones beyond.

    rows: ascending, at least one.
    """

    rows: tuple[int, ...]
    logs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.logs = self.logs or [0.0] * len(self.rows)

    def at(self, rows: float) -> float:
        """The factor for passes of so many rows."""
        return math.exp(sum(weight * self.logs[i] for i, weight in self._near(rows)))

    def note(self, rows: float, surprise: float) -> None:
        """Learn from a pass; surprise: the logarithm of what it took over what was expected. Mutates logs."""
        for i, weight in self._near(rows):
            self.logs[i] += RATE * weight * surprise

    def _near(self, rows: float) -> list[tuple[int, float]]:
        """The numbers of rows beside this one, and how near it is to each."""
        right = bisect_left(self.rows, rows)
        if right == 0 or right == len(self.rows):
            return [(min(right, len(self.rows) - 1), 1.0)]
        low, high = self.rows[right - 1], self.rows[right]
        along = (rows - low) / (high - low)
        return [(right - 1, 1 - along), (right, along)]
