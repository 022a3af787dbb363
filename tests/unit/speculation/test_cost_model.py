"""What a pass costs: a sum of parts, that follows the machine; and what drafts are worth at such costs."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_backend.speculation.cost_model import CostModel, RowCosts, speed_up
from swift_backend.speculation.layer_set import LayerSet

LAYERS = 5
MODEL = CostModel(
    num_layers=LAYERS,
    attention=RowCosts((1, 4, 8), (2.0, 5.0, 7.0)),
    mlp=RowCosts((1, 4, 8), (3.0, 3.0, 11.0)),
    head=RowCosts((1, 4, 8), (40.0, 46.0, 54.0)),
    rest=RowCosts((1, 4, 8), (1.0, 1.5, 2.5)),
    per_key=0.01,
)

seconds = st.floats(1e-6, 1.0)
masks = st.integers(0, (1 << 2 * LAYERS) - 1)


@st.composite
def row_costs(draw: st.DrawFn) -> RowCosts:
    rows = sorted(draw(st.sets(st.integers(1, 64), min_size=1, max_size=6)))
    return RowCosts(tuple(rows), tuple(draw(st.lists(seconds, min_size=len(rows), max_size=len(rows)))))


@st.composite
def models(draw: st.DrawFn) -> CostModel:
    attention, mlp, head, rest = (draw(row_costs()) for _ in range(4))
    return CostModel(LAYERS, attention, mlp, head, rest, draw(st.floats(0.0, 1e-4)), draw(st.floats(0.1, 10.0)))


def measured(scale: float) -> CostModel:
    return CostModel(LAYERS, MODEL.attention, MODEL.mlp, MODEL.head, MODEL.rest, MODEL.per_key, scale)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(1, 2.0), (2, 3.0), (2.5, 3.5), (4, 5.0), (6, 6.0), (8, 7.0), (9, 7.5), (16, 11.0), (0.25, 2.0)],
)
def test_between_two_numbers_of_rows_is_a_line_and_so_is_beyond(rows: float, expected: float) -> None:
    """Less than a row, as in an average of some passes, costs what one does."""
    assert RowCosts((1, 4, 8), (2.0, 5.0, 7.0)).at(rows) == expected


@pytest.mark.parametrize("rows", [0, 0.0, -1])
def test_no_rows_cost_nothing(rows: float) -> None:
    assert RowCosts((1, 4), (2.0, 5.0)).at(rows) == 0.0
    assert RowCosts((3,), (2.0,)).at(rows) == 0.0


def test_a_pass_without_rows_costs_nothing() -> None:
    assert MODEL.seconds(0, 100) == 0.0


def test_one_measured_number_of_rows_counts_for_fewer_and_as_often_as_it_fits_into_more() -> None:
    once = RowCosts((4,), (2.0,))
    assert [once.at(rows) for rows in (0.5, 1, 4, 6, 40)] == [2.0, 2.0, 2.0, 3.0, 20.0]


def test_a_line_that_falls_by_noise_does_not_go_on_falling() -> None:
    """A chunk of 512 rows would cost less than nothing, whose logarithm nobody can learn from."""
    noisy = RowCosts((1, 16, 32), (1.0, 2.0, 1.9))
    assert [noisy.at(rows) for rows in (24, 32, 33, 512)] == pytest.approx([1.95, 1.9, 1.9, 1.9])


@given(row_costs(), st.floats(0.01, 1000))
def test_no_number_of_rows_costs_less_than_the_cheapest_that_was_measured(costs: RowCosts, rows: float) -> None:
    assert costs.at(rows) >= min(costs.seconds) * (1 - 1e-9)


@given(row_costs())
def test_what_was_measured_is_what_it_says(costs: RowCosts) -> None:
    assert [costs.at(rows) for rows in costs.rows] == pytest.approx(list(costs.seconds))


def test_a_pass_is_the_sum_of_its_parts() -> None:
    assert MODEL.seconds(1, 0) == 5 * 2 + 5 * 3 + 40 + 1
    assert MODEL.seconds(4, 0) == 5 * 5 + 5 * 3 + 46 + 1.5
    assert MODEL.seconds(1, 0, skip_mask=0b11_1111_1111) == 40 + 1


def test_attentions_are_even_and_mlps_odd() -> None:
    full = MODEL.seconds(1, 0)
    assert [full - MODEL.seconds(1, 0, 1 << sublayer) for sublayer in range(10)] == [2, 3] * 5


def test_each_row_of_each_attention_looks_at_the_context() -> None:
    assert MODEL.seconds(1, 200) - MODEL.seconds(1, 0) == pytest.approx(5 * 200 * 0.01)
    assert MODEL.seconds(3, 200) - MODEL.seconds(3, 0) == pytest.approx(5 * 3 * 200 * 0.01)
    assert MODEL.seconds(3, 200, 0b0101) - MODEL.seconds(3, 0, 0b0101) == pytest.approx(3 * 3 * 200 * 0.01)
    assert MODEL.seconds(3, 200, 0b1010) - MODEL.seconds(3, 0, 0b1010) == pytest.approx(5 * 3 * 200 * 0.01)


def test_the_head_costs_by_the_logits_that_are_asked_for() -> None:
    without = MODEL.seconds(8, 0, logit_rows=0)
    assert MODEL.seconds(8, 0) - without == 54
    assert MODEL.seconds(8, 0, logit_rows=8) - without == 54
    assert MODEL.seconds(8, 0, logit_rows=1) - without == 40
    assert MODEL.seconds(8, 0, logit_rows=6) - without == 50


@given(models(), masks, st.floats(0.1, 100), st.floats(0, 4000), st.floats(0, 100))
def test_any_pass_is_the_sum_of_what_it_computes(
    model: CostModel, mask: int, rows: float, context: float, logit_rows: float
) -> None:
    expected = model.head.at(logit_rows) + model.rest.at(rows)
    for sublayer in LayerSet(LAYERS, mask).kept:
        mlp = sublayer % 2
        expected += model.mlp.at(rows) if mlp else model.attention.at(rows) + model.per_key * rows * context
    assert model.seconds(rows, context, mask, logit_rows) == pytest.approx(model.scale * expected)


@given(models(), masks, masks, st.floats(0.1, 100), st.floats(0, 4000))
def test_who_skips_more_never_pays_more(model: CostModel, mask: int, more: int, rows: float, context: float) -> None:
    assert model.seconds(rows, context, mask | more) <= model.seconds(rows, context, mask)
    assert model.seconds(rows, context, mask) > 0


@given(models(), masks, st.floats(0, 4000))
def test_what_a_sublayer_costs_is_what_skipping_it_saves(model: CostModel, mask: int, context: float) -> None:
    attention, mlp = model.sublayer_seconds(context)
    skipped = LayerSet(LAYERS, mask)
    attentions = sum(not skipped.keeps(sublayer) for sublayer in range(0, 2 * LAYERS, 2))
    mlps = sum(not skipped.keeps(sublayer) for sublayer in range(1, 2 * LAYERS, 2))
    left = model.seconds(1, context) - attentions * attention - mlps * mlp
    assert left == pytest.approx(model.seconds(1, context, mask))


def test_shares_are_in_times_of_a_plain_token() -> None:
    """66 s; with 100 slots an attention takes 3 s of 71."""
    assert MODEL.sublayer_shares(0) == (2 / 66, 3 / 66)
    assert measured(scale=4.0).sublayer_shares(100) == pytest.approx((3 / 71, 3 / 71))


def test_c_is_a_draft_pass_over_a_full_one() -> None:
    layers = LayerSet.skipping(LAYERS, [1, 3])
    assert MODEL.draft_ratio(layers, 0) == (66 - 10) / 66
    assert MODEL.draft_ratio(layers, 100) == pytest.approx((71 - 12) / 71)
    assert MODEL.draft_ratio(LayerSet(LAYERS), 100) == 1.0
    assert measured(scale=7.0).draft_ratio(layers, 0) == pytest.approx((66 - 10) / 66)


def test_a_slower_machine_is_slower_in_every_part() -> None:
    slow = measured(scale=3.0)
    assert slow.seconds(4, 100, 0b1101) == pytest.approx(3 * MODEL.seconds(4, 100, 0b1101))
    assert slow.sublayer_seconds(100) == pytest.approx((9.0, 9.0))


def passes(seed: int, count: int) -> list[tuple[int, int, int]]:
    """(rows, context, skip mask) of drafting and full passes."""
    rng = random.Random(seed)
    return [(rng.randrange(1, 9), rng.randrange(1000), rng.choice([0, 0b11_1100, 0b1111_1100])) for _ in range(count)]


@pytest.mark.parametrize(("factor", "least"), [(3.0, 20), (1 / 3, 20), (1.2, 0)])
def test_it_follows_a_machine_that_has_changed(factor: float, least: int) -> None:
    """Under 20 % of noise, within 20 % after 65 passes and ever after, and not at once."""
    rng = random.Random(1)
    truth, model = measured(factor), measured(1.0)
    errors = []
    for rows, context, mask in passes(2, 500):
        took = truth.seconds(rows, context, mask) * rng.uniform(0.8, 1.2)
        model.note(took, rows, context, mask)
        now = model.seconds(rows, context, mask) / truth.seconds(rows, context, mask)
        errors.append(abs(now - 1))
    assert max(errors[65:]) < 0.2
    assert all(error > 0.1 for error in errors[:least])


@pytest.mark.parametrize("outlier", [1e-4, 0.3, 5.0, 1e4])
def test_one_outlier_moves_it_little(outlier: float) -> None:
    """By at most 5 %, however far off, and half of that is forgotten after 14 passes."""
    model = measured(1.0)
    model.note(outlier * model.seconds(1, 100), 1, 100)
    moved = abs(math.log(model.seconds(1, 100) / MODEL.seconds(1, 100)))
    assert 0.03 < moved < 0.05
    for _ in range(14):
        model.note(MODEL.seconds(1, 100), 1, 100)
    assert abs(math.log(model.seconds(1, 100) / MODEL.seconds(1, 100))) < moved / 2


def test_a_pass_that_took_as_long_as_expected_changes_nothing() -> None:
    model = measured(2.0)
    model.note(model.seconds(2, 50), 2, 50)
    model.note(model.seconds(3, 50, 0b1100, 1), 3, 50, 0b1100, 1)
    assert model == measured(2.0)


def test_a_pass_that_took_no_time_is_no_error() -> None:
    """A clock may stand still, or be set back."""
    for took in (0.0, -5.0):
        model = measured(1.0)
        model.note(took, 1, 0)
        assert 0.9 < model.scale < 1.0


def test_it_learns_what_each_number_of_rows_takes() -> None:
    """Of a pass of 8 rows somebody else took half of the machine while it was measured, and drafts have overhead."""
    dear = RowCosts((1, 4, 8), (5.0, 6.0, 20.0))
    true = RowCosts((1, 4, 8), (5.0, 6.0, 10.0))
    model, truth = (CostModel(LAYERS, one, one, one, one, 0.0) for one in (dear, true))
    rng, slower = random.Random(4), 1.3
    for _ in range(800):
        rows = rng.choice([1, 2, 4, 8])
        model.note(truth.seconds(rows, 0) * rng.uniform(0.9, 1.1), rows, 0)
        model.note(slower * truth.seconds(1, 0, 0b1100) * rng.uniform(0.9, 1.1), 1, 0, 0b1100)
    for rows in (1, 2, 4, 8):
        assert model.seconds(rows, 0) == pytest.approx(truth.seconds(rows, 0), rel=0.07)
    assert model.seconds(1, 0, 0b1111_00) == pytest.approx(slower * truth.seconds(1, 0, 0b1111_00), rel=0.07)


def simulated(alpha: float, draft_ratio: float, verify_ratio: float, length: int, rounds: int = 20_000) -> float:
    """Tokens per plain token's time, played round by round."""
    rng = random.Random(3)
    tokens = 0
    for _ in range(rounds):
        accepted = 0
        while accepted < length and rng.random() < alpha:
            accepted += 1
        tokens += accepted + 1
    return tokens / (rounds * (draft_ratio * length + verify_ratio))


@pytest.mark.parametrize(
    ("alpha", "draft_ratio", "growth"), [(0.8, 0.3, 0.05), (0.95, 0.6, 0.02), (0.5, 0.1, 0.1), (0.9, 0.05, 0.0)]
)
def test_speed_up_is_what_a_simulation_shows(alpha: float, draft_ratio: float, growth: float) -> None:
    verify = [1 + growth * k for k in range(9)]
    best, length = speed_up(alpha, draft_ratio, verify)
    played = [simulated(alpha, draft_ratio, ratio, k) for k, ratio in enumerate(verify)]
    assert length > 0
    assert played[length] == pytest.approx(best, rel=0.02)
    assert max(played) == pytest.approx(best, rel=0.02)


@given(st.floats(0, 1), st.floats(0, 1.5), st.lists(st.floats(0, 0.5), max_size=8))
def test_no_other_length_is_faster(alpha: float, draft_ratio: float, steps: list[float]) -> None:
    """Leviathan's (1 - α^(k+1)) / ((1 - α) * (c * k + v_k)); k is the shortest of those that are fastest."""
    verify = list(itertools.accumulate(steps, initial=1.0))
    rates = [sum(alpha**i for i in range(k + 1)) / (draft_ratio * k + ratio) for k, ratio in enumerate(verify)]
    best, length = speed_up(alpha, draft_ratio, verify)
    assert best == pytest.approx(max(rates[1:], default=0.0))
    assert not length or rates[length] == pytest.approx(best)


def test_drafts_that_are_always_wrong_bring_nothing() -> None:
    """They cost least where there is one of them; whoever gets less than 1 does without."""
    assert speed_up(0.0, 0.3, [1.0, 1.1, 1.2]) == (pytest.approx(1 / 1.4), 1)
    assert speed_up(0.0, 0.0, [1.0, 1.0, 1.0]) == (1.0, 1)


def test_drafts_that_are_always_right() -> None:
    """The longest where a drafted token costs less than a plain one, one where it costs more."""
    assert speed_up(1.0, 0.25, [1.0, 1.0, 1.0, 1.0, 1.0]) == (2.5, 4)
    assert speed_up(1.0, 0.75, [1.0, 1.5, 2.0, 2.5]) == (pytest.approx(2 / 2.25), 1)


def test_drafts_that_cost_nothing() -> None:
    """As long as verifying costs nothing either; else until the next token's chance is less than its row."""
    assert speed_up(0.5, 0.0, [1.0, 1.0, 1.0]) == (1.75, 2)
    assert speed_up(0.5, 0.0, [1.0, 1.2, 1.4, 1.6]) == (1.5 / 1.2, 1)


def test_no_drafts_are_allowed() -> None:
    assert speed_up(0.9, 0.1, [1.0]) == (0.0, 0)
    assert speed_up(0.9, 0.1, []) == (0.0, 0)
