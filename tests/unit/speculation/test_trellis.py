"""Paths are those of the model without what they leave out, and the best for what they save."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swift_backend import SwiftLLM
from swift_backend.batch import RowGroup
from swift_backend.model.shadow import Shadow, shadow_logits
from swift_backend.speculation.trellis import Trellis, height, upper_hull

SUBLAYERS = 8


class Turning:
    """A text of one position, whose state each sublayer turns by an angle, in radians, that may depend on the state."""

    embedded = torch.tensor([[1.0, 0.0]])

    def __init__(self, angle: Callable[[int, torch.Tensor], float]) -> None:
        self._angle = angle

    def after(self, index: int, states: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [self._turned(state, torch.tensor(self._angle(index, state))) for state in states]

    def _turned(self, state: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        cos, sin = angle.cos(), angle.sin()
        return state @ torch.tensor([[cos, sin], [-sin, cos]])


def run(trellis: Trellis) -> list[int]:
    while not trellis.done:
        trellis.step()
    return trellis.masks


def mask(*sublayers: int) -> int:
    return sum(1 << one for one in sublayers)


def trellis(*texts: Turning, saved: tuple[float, float] = (0.1, 0.1)) -> Trellis:
    return Trellis(texts, saved, lambda skip, sublayer: True, SUBLAYERS)


def test_of_each_size_it_is_what_changes_least() -> None:
    """Losses add up here, so that the best sets are known."""
    angles = [0.5, 0.02, 0.3, 0.01, 0.2, 0.03, 0.1, 0.4]
    order = sorted(range(SUBLAYERS), key=lambda one: angles[one])
    masks = run(trellis(Turning(lambda index, state: angles[index])))
    assert masks == [mask(*order[: size + 1]) for size in range(SUBLAYERS)]


def test_what_a_sublayer_does_to_the_path_counts() -> None:
    """2 and 5 change least, but without both of them 7 turns far away; no sum of losses would know."""

    def angle(index: int, state: torch.Tensor) -> float:
        if index == 7:
            return 0.3 if torch.atan2(state[0, 1], state[0, 0]) > 0.51 else 1.1
        return {2: 0.05, 5: 0.02}.get(index, 0.1)

    masks = run(trellis(Turning(angle)))
    assert masks[0] == mask(5) and masks[1] == mask(5, 7)


def test_time_counts() -> None:
    """MLPs, the odd ones, turn twice as far but save five times as much."""
    masks = run(trellis(Turning(lambda index, state: 0.2 if index % 2 else 0.1), saved=(0.04, 0.2)))
    by_kind = {((one & 0x55).bit_count(), (one & 0xAA).bit_count()) for one in masks}
    assert {(0, 1), (0, 2), (0, 3)} <= by_kind
    assert all(attentions == 0 for attentions, mlps in by_kind if 0 < mlps < 4)


@pytest.mark.parametrize("least_share", [0.0, 0.1])
@pytest.mark.parametrize("saved", [(0.01, 0.06), (0.05, 0.02), (0.03, 0.03)])
def test_no_step_is_too_small_to_be_taken(saved: tuple[float, float], least_share: float) -> None:
    """All change alike; the paths go on until everything is left out."""
    texts, share = [Turning(lambda index, state: 0.1)], max(*saved, least_share)
    masks = run(Trellis(texts, saved, lambda skip, one: True, SUBLAYERS, least_share=least_share))
    assert masks[-1] == mask(*range(SUBLAYERS))
    assert len(masks) in range(int(4 * sum(saved) / share), int(4 * sum(saved) / share) + 3)


def test_all_texts_count() -> None:
    """One cannot do without 2, the other not without 6."""
    one = Turning(lambda index, state: 1.5 if index == 2 else 0.1)
    other = Turning(lambda index, state: 1.5 if index == 6 else 0.1)
    for masks, needed in ((run(trellis(one)), {2}), (run(trellis(other)), {6}), (run(trellis(one, other)), {2, 6})):
        assert {sublayer for sublayer in range(SUBLAYERS) if not masks[5] >> sublayer & 1} >= needed


def test_what_may_not_be_skipped_is_kept() -> None:
    made = Trellis([Turning(lambda index, state: 0.1)], (0.1, 0.1), lambda skip, one: one > 5 and not skip, SUBLAYERS)
    assert set(run(made)) <= {mask(6), mask(7)}
    nothing = Trellis([Turning(lambda index, state: 0.1)], (0.1, 0.1), lambda skip, one: False, SUBLAYERS)
    assert run(nothing) == []


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_a_path_ends_where_the_model_without_its_sublayers_does(tiny_model: Callable[[str], Path], family: str) -> None:
    """Bit for bit what a trial of its mask says, of two texts of different lengths."""
    runner = SwiftLLM(tiny_model(family), "float32", kv_cache_tokens=200).engine.runner
    layers, texts = runner.decoder.config.num_layers, [list(range(3, 40)), [7, 9, 2] * 5]
    extents = [runner.cache.reserve(len(tokens)) for tokens in texts]
    shadows, asked = [], []
    for tokens, extent in zip(texts, extents, strict=True):
        assert extent is not None
        runner.forward([RowGroup(tokens, 0, extent.start, 0)])
        positions = range(len(tokens) - 5, len(tokens) - 1)
        known = [tokens[i] for i in positions]
        shadows.append(Shadow.of(runner.decoder, runner.cache, extent.start, known, positions))
        asked.append((extent.start, known, positions))
    made = Trellis(shadows, (0.03, 0.05), lambda skip, one: 2 <= one < 2 * layers - 2, 2 * layers)
    masks = run(made)
    assert len(masks) > 5 and all(one & 0b11 == 0 == one >> (2 * layers - 2) for one in masks)
    for path in made.paths:
        for (start, known, positions), shadow, states in zip(asked, shadows, path.states, strict=True):
            trial = shadow_logits(runner.decoder, runner.cache, start, known, positions, [path.skip_mask])
            torch.testing.assert_close(shadow.logits([states]), trial, rtol=1e-4, atol=1e-5)


points = st.lists(st.tuples(st.integers(0, 20).map(float), st.integers(0, 20).map(float)), min_size=1, max_size=12)


@given(points)
def test_the_hull_is_above_all_points_and_concave(cloud: list[tuple[float, float]]) -> None:
    hull = upper_hull(cloud)
    assert set(hull) <= set(cloud)
    assert all(height(hull, x) >= y - 1e-9 for x, y in cloud)
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.pairwise(hull)]
    assert all(left > right for left, right in itertools.pairwise(slopes))
