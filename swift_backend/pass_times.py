"""How long does a full pass take, by its rows and by the keys that they look at? Measured, and kept current."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter

from swift_backend.batch import RowGroup
from swift_backend.runner import Runner

# How much of an error is corrected, and the largest error (as a logarithm) that is believed: others had the machine.
RATE = 0.2
MOST_SURPRISE = math.log(2)

MANY_ROWS = 32
DEEP_ROWS, DEEP_CONTEXT = 8, 1024
MEASURING_SECONDS = 0.5


@dataclass(slots=True)
class PassTimes:
    """Seconds of a pass = fixed + per_row * rows + per_key * keys.

    keys: for each row the cache slots that it attends to, added up. Within the range that matters here, from one row to
    a chunk of a prompt, a straight line through what was measured is near enough.
    """

    fixed: float
    per_row: float
    per_key: float

    def seconds(self, rows: float, keys: float = 0.0) -> float:
        """The expected time of a pass."""
        return self.fixed + self.per_row * rows + self.per_key * keys

    def note(self, rows: int, keys: int, seconds: float) -> None:
        """Learn from a pass: each part takes the share of the error that it has in the expectation."""
        expected = self.seconds(rows, keys)
        error = math.log(max(seconds, 1e-9) / expected)
        step = RATE * min(MOST_SURPRISE, max(-MOST_SURPRISE, error)) / expected
        self.fixed *= math.exp(step * self.fixed)
        self.per_row *= math.exp(step * self.per_row * rows)
        self.per_key *= math.exp(step * self.per_key * keys)

    def rows_within(self, seconds: float, rows: int, keys: int, first: int) -> int:
        """How many consecutive rows from position `first` on can join a pass of `rows` and `keys` in that time.

        n rows look at n * first + n * (n + 1) / 2 keys, so this is the root of a quadratic.
        """
        left = seconds - self.seconds(rows, keys)
        if left <= 0:
            return 0
        linear = self.per_row + self.per_key * (first + 0.5)
        return int(2 * left / (linear + math.sqrt(linear * linear + 2 * self.per_key * left)))


def measure(runner: Runner) -> PassTimes:
    """Time three kinds of pass in the empty cache, a second or two for slow models; overwrites its first slots."""
    context = min(runner.decoder.config.context_length, runner.cache.capacity)
    many, deep = min(MANY_ROWS, context), max(0, min(DEEP_CONTEXT, context) - DEEP_ROWS)
    one = _fastest(runner, RowGroup([0], 0, 0, 1))
    per_row = max((_fastest(runner, RowGroup([0] * many, 0, 0, 1)) - one) / max(many - 1, 1), one / 1000)
    rest = _fastest(runner, RowGroup([0] * min(DEEP_ROWS, context), deep, 0, 1)) - one - per_row * (DEEP_ROWS - 1)
    per_key = max(rest / max(DEEP_ROWS * deep, 1), per_row / 1e6)
    return PassTimes(max(one - per_row, one / 10), per_row, per_key)


def _fastest(runner: Runner, group: RowGroup) -> float:
    """Seconds of the fastest of a few passes; the first is a warm-up where there is time for more."""
    begun, times = perf_counter(), list[float]()
    while len(times) < 4 and (not times or perf_counter() - begun < MEASURING_SECONDS):
        started = perf_counter()
        runner.forward([group]).argmax(-1).tolist()
        times.append(perf_counter() - started)
    return min(times)
