"""Measured parts are the true ones, within a time limit and a cache of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from swift_backend import SwiftLLM
from swift_backend.batch import RowGroup
from swift_backend.runner import Runner
from swift_backend.speculation.cost_measuring import IN_PARTS, WHOLE, CostMeasuring, measuring_room
from swift_backend.speculation.cost_model import CostModel, RowCosts
from swift_backend.speculation.layer_set import LayerSet

LAYERS = 6
TICK = 2.0**-20  # sums and differences of its multiples are exact
PER_KEY = TICK / 64
ALL = tuple(sorted((*IN_PARTS, *WHOLE)))


def attention(rows: int) -> float:
    return (30 + 2 * rows) * TICK


def mlp(rows: int) -> float:
    return (50 + 3 * rows) * TICK


def head(rows: int) -> float:
    return (40 + 5 * rows) * TICK if rows else 0.0


def rest(rows: int) -> float:
    return (20 + rows) * TICK


class Machine:
    """A clock, and a runner whose passes move it on by what they cost here.

    unit: how slow it is. hiccup: how many times as long a pass takes that it did not do just before.
    """

    def __init__(
        self, context_length: int = 8192, capacity: int = 8192, unit: float = 1.0, hiccup: float = 1.0
    ) -> None:
        self.now = 100.0
        self.decoder = SimpleNamespace(config=SimpleNamespace(num_layers=LAYERS, context_length=context_length))
        self.cache = SimpleNamespace(capacity=capacity)
        self.device = torch.device("cpu")
        self.passes: list[tuple[int, int]] = []
        self._unit, self._hiccup = unit, hiccup
        self._last: tuple[RowGroup, tuple[int, ...]] | None = None

    def forward(self, groups: Sequence[RowGroup], kept: Sequence[int]) -> torch.Tensor:
        [group] = groups
        rows = len(group.token_ids)
        attentions = sum(sublayer % 2 == 0 for sublayer in kept)
        seconds = attentions * (attention(rows) + PER_KEY * rows * group.first)
        seconds += (len(kept) - attentions) * mlp(rows) + head(group.num_logits) + rest(rows)
        again = self._last == (group, tuple(kept))
        self.now += seconds * self._unit * (1.0 if again else self._hiccup)
        self._last = (group, tuple(kept))
        self.passes.append((group.extent_start + group.first, rows))
        return torch.zeros(group.num_logits, 3)

    def measure(self, seconds: float = 3.0) -> CostModel:
        return CostMeasuring(cast(Runner, self), lambda: self.now).run(seconds)


def parts(*rows: int, unit: float = 1.0) -> CostModel:
    """The truth for so many rows; attentions with the one slot that they look back at while measured."""

    def column(cost: Callable[[int], float], more: float = 0.0) -> RowCosts:
        return RowCosts(rows, tuple((cost(count) + more * count) * unit for count in rows))

    return CostModel(
        LAYERS, column(attention, PER_KEY), column(mlp), column(head), column(rest), per_key=PER_KEY * unit
    )


def assert_alike(costs: CostModel, truth: CostModel) -> None:
    """The same but for rounding."""
    for one, other in zip(columns(costs), columns(truth), strict=True):
        assert one.rows == other.rows
        assert one.seconds == pytest.approx(other.seconds, rel=1e-9)
    assert (costs.num_layers, costs.per_key) == (truth.num_layers, truth.per_key)


def columns(costs: CostModel) -> list[RowCosts]:
    return [costs.attention, costs.mlp, costs.head, costs.rest]


def test_measured_parts_are_the_true_ones() -> None:
    assert_alike(Machine().measure(), parts(*ALL))


def test_the_first_pass_of_each_kind_is_a_warm_up() -> None:
    assert_alike(Machine(hiccup=50.0).measure(), parts(*ALL))


def test_blocks_of_rows_are_seen() -> None:
    """Six rows go through a kernel at once, so that one of seven costs much more; all parts alike."""

    class Blocks(Machine):
        def forward(self, groups: Sequence[RowGroup], kept: Sequence[int]) -> torch.Tensor:
            before, blocks = self.now, -(-len(groups[0].token_ids) // 6)
            logits = super().forward(groups, kept)
            self.now += (blocks - 1) * (self.now - before)
            return logits

    costs, smooth = Blocks().measure(), Machine().measure()
    for rows, blocks in ((1, 1), (6, 1), (7, 2), (12, 2), (64, 11)):
        for mask in (0, 0b11_1100):
            assert costs.seconds(rows, 0, mask) == pytest.approx(blocks * smooth.seconds(rows, 0, mask), rel=0.01)


def test_a_pass_is_forecast_as_it_is() -> None:
    """Any layer set, numbers of rows that were not measured, a head for fewer rows than there are, a long context.

    Of which one slot is in the measured attentions.
    """
    machine = Machine()
    costs = machine.measure()
    for rows, first, mask, logits in ((1, 1, 0, 1), (3, 700, 0b1100, 3), (6, 4000, 0b0110_1001, 1), (48, 90, 0b101, 0)):
        before = machine.now
        machine.forward([RowGroup([0] * rows, first, 0, logits)], LayerSet(LAYERS, mask).kept)
        assert costs.seconds(rows, first - 1, mask, logits) == pytest.approx(machine.now - before, rel=1e-9)


def test_several_rows_look_back_as_in_a_draft() -> None:
    """Rows that begin at position 0 are a prompt's: another mask, and another kernel."""
    machine = Machine()
    machine.measure()
    assert {first for first, _ in machine.passes} == {1, 1020}


@pytest.mark.parametrize("seconds", [0.0, 1.0, 1.3, 1.6, 2.0, 3.0, 6.0])
def test_it_stops_when_the_time_is_up_but_has_two_numbers_of_rows(seconds: float) -> None:
    """The rest of them as far as there is time: where 12 would take too long, 2 may not."""
    machine = Machine(unit=128.0)
    costs = machine.measure(seconds)
    assert machine.now - 100.0 < max(seconds, 0.9)
    rows = costs.mlp.rows
    assert set(IN_PARTS) <= set(rows) <= set(ALL)
    assert_alike(costs, parts(*rows, unit=128.0))
    for left_out in set(WHOLE) - set(rows):
        assert machine.now - 100.0 + 2 * costs.seconds(left_out, 1) > seconds
    assert (len(rows) == 2) == (seconds <= 0.9) and (len(rows) == len(ALL)) == (seconds == 6.0)


@pytest.mark.parametrize(
    ("room", "rows"),
    [(1, (1,)), (2, (1, 2)), (5, (1, 2, 3, 4, 5)), (31, (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)), (128, ALL)],
)
def test_a_small_cache_or_context_is_not_left(room: int, rows: tuple[int, ...]) -> None:
    for machine in (Machine(capacity=room), Machine(context_length=room)):
        costs = machine.measure()
        assert costs.attention.rows == costs.mlp.rows == costs.head.rows == costs.rest.rows == rows
        if room >= max(IN_PARTS):
            assert costs.mlp.seconds == pytest.approx(parts(*rows).mlp.seconds, rel=0.005)
        assert max(first + count for first, count in machine.passes) <= room
        assert measuring_room(cast(Runner, machine)) == room


@pytest.mark.parametrize(("room", "expected"), [(1, 0.0), (5, 0.0), (6, PER_KEY), (200, PER_KEY), (1024, PER_KEY)])
def test_the_context_costs_nothing_where_there_is_none(room: int, expected: float) -> None:
    assert Machine(capacity=room).measure().per_key == expected


def test_no_part_is_ever_free() -> None:
    """The machine was busy during the passes without sublayers: the others seem to take no time."""

    class Busy(Machine):
        def forward(self, groups: Sequence[RowGroup], kept: Sequence[int]) -> torch.Tensor:
            self.now += 0.0 if kept or groups[0].num_logits else 1.0
            return super().forward(groups, kept)

    costs = Busy().measure()
    for part in (costs.attention, costs.mlp, costs.head):
        assert min(part.seconds) > 0
    assert costs.draft_ratio(LayerSet(LAYERS, 0b1100), 0) < 1


def test_a_device_that_answers_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's passes take no time until somebody asks for their result."""

    class Later(Machine):
        owed = 0.0

        def forward(self, groups: Sequence[RowGroup], kept: Sequence[int]) -> torch.Tensor:
            before = self.now
            logits = super().forward(groups, kept)
            if not groups[0].num_logits:  # who has logits looks at them
                self.owed += self.now - before
                self.now = before
            return logits

        def wait(self, device: torch.device) -> None:
            self.now, self.owed = self.now + self.owed, 0.0

    machine = Later()
    machine.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", machine.wait)
    assert_alike(machine.measure(), parts(*ALL))


def test_a_real_model_takes_no_time_worth_mentioning(tiny_model: Callable[[str], Path]) -> None:
    runner = SwiftLLM(tiny_model("mistral"), "float32", kv_cache_tokens=400).engine.runner
    began = perf_counter()
    costs = CostMeasuring(runner).run(1.0)
    assert perf_counter() - began < 2.0
    for part in (costs.attention, costs.mlp, costs.head, costs.rest):
        assert min(part.seconds) > 0 and max(part.seconds) < 0.2
    assert costs.num_layers == 7 and costs.per_key >= 0
    assert costs.draft_ratio(LayerSet.skipping(7, [2, 3, 4]), 100) < 1
    assert runner.cache.tokens_used == 0
