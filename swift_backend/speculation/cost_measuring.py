"""How long do sublayers and head take here? Timed at start-up within a few seconds, in the empty cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

import torch

from swift_backend.batch import RowGroup
from swift_backend.runner import Runner
from swift_backend.speculation.cost_model import CostModel, RowCosts

# At these numbers of rows each part is timed by itself, at others whole passes only, of which the parts have the shares
# that a line gives them.
IN_PARTS = (1, 4)
# The most telling first: what is left when the time is up is a line beyond. Kernels work on blocks of rows, so that a
# draft of 6 rows may cost no more than one of 5, and one of 7 half as much again.
WHOLE = (6, 12, 2, 8, 32, 3, 5, 7, 16, 64, 128)
REPEATS = 2
# One slot before the rows: without any, several rows would take a prompt's mask and kernel, not those of a draft.
SHALLOW = 1
DEEP_ROWS, DEEP_CONTEXT = 4, 1024
MOST_SECONDS = 3.0

Parts = tuple[float, float, float, float]  # seconds of an attention, an MLP, the head and the rest


class CostMeasuring:
    """Times passes with some of the sublayers, of which the rest follows; overwrites the cache's first slots."""

    def __init__(self, runner: Runner, clock: Callable[[], float] = perf_counter) -> None:
        self._runner = runner
        self._clock = clock
        layers = runner.decoder.config.num_layers
        self._layers = layers
        self._attentions, self._mlps = range(0, 2 * layers, 2), range(1, 2 * layers, 2)
        self._room = measuring_room(runner)

    def run(self, seconds: float = MOST_SECONDS) -> CostModel:
        """Measure for about so long at most, but the parts and the context in any case."""
        begun = self._clock()
        self._time(1, SHALLOW, range(2 * self._layers), logits=True)  # a warm-up
        per_key = self._per_key()
        parts: dict[int, Parts] = {rows: self._parts(rows) for rows in IN_PARTS if rows <= self._room}
        costs = self._model(parts, per_key)
        for rows in [rows for rows in WHOLE if rows <= self._room]:
            if self._clock() - begun + REPEATS * costs.seconds(rows, SHALLOW) <= seconds:
                parts[rows] = self._whole(rows, costs)
                costs = self._model(parts, per_key)
        return costs

    def _model(self, parts: Mapping[int, Parts], per_key: float) -> CostModel:
        """Columns of the four parts, by rows."""
        rows = sorted(parts)
        columns = [RowCosts(tuple(rows), tuple(parts[count][i] for count in rows)) for i in range(4)]
        attention, mlp, head, rest = columns
        return CostModel(self._layers, attention, mlp, head, rest, per_key)

    def _whole(self, rows: int, costs: CostModel) -> Parts:
        """The parts of a pass that is timed as a whole; costs: what was expected of it."""
        share = self._time(rows, SHALLOW, range(2 * self._layers), logits=True) / costs.seconds(rows, 0)
        attention, mlp, head, rest = costs.attention, costs.mlp, costs.head, costs.rest
        return share * attention.at(rows), share * mlp.at(rows), share * head.at(rows), share * rest.at(rows)

    def _parts(self, rows: int) -> Parts:
        """Of an attention, an MLP, the head and the rest, by so many rows."""
        rest = self._time(rows, SHALLOW, (), logits=False)
        least = rest / 1000  # differences of two noisy times
        attention = max(self._time(rows, SHALLOW, self._attentions, logits=False) - rest, least) / self._layers
        mlp = max(self._time(rows, SHALLOW, self._mlps, logits=False) - rest, least) / self._layers
        return attention, mlp, max(self._time(rows, SHALLOW, (), logits=True) - rest, least), rest

    def _per_key(self) -> float:
        """Of an attention, for each slot that one of its rows looks at."""
        more = self._room - DEEP_ROWS - SHALLOW
        if more <= 0:
            return 0.0
        deep = self._time(DEEP_ROWS, SHALLOW + more, self._attentions, logits=False)
        shallow = self._time(DEEP_ROWS, SHALLOW, self._attentions, logits=False)
        return max(deep - shallow, 0.0) / (self._layers * DEEP_ROWS * more)

    def _time(self, rows: int, first: int, kept: range | tuple[()], logits: bool) -> float:
        """Seconds of the fastest of a few passes, from position `first` on where there is room."""
        group = RowGroup([0] * rows, min(first, self._room - rows), 0, rows if logits else 0)
        times: list[float] = []
        for _ in range(REPEATS):
            started = self._clock()
            out = self._runner.forward([group], tuple(kept))
            if logits:
                out.argmax(-1).tolist()  # waits for the device
            elif self._runner.device.type == "cuda":
                torch.cuda.synchronize(self._runner.device)
            times.append(self._clock() - started)
        return min(times)


def measuring_room(runner: Runner) -> int:
    """The slots that measuring uses at most; fewer where the model's context or the cache is smaller."""
    return min(DEEP_CONTEXT, runner.decoder.config.context_length, runner.cache.capacity)
