"""Drafting along a known text: rounds played by hand, and what must hold for any text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_backend.speculation.cost_model import speed_up
from swift_backend.speculation.rehearsal import Costs, Rehearsal, best_rehearsal, rehearse

COSTS = Costs(draft=0.25, verify=(1.0, 1.5, 2.0, 4.0))
YES, NO = True, False
SURE = [1.0] * 20
SURER_THAN_SURE = 1.01

verify_costs = st.lists(st.floats(0.5, 4.0), min_size=2, max_size=7).map(tuple)
any_costs = st.builds(Costs, draft=st.floats(0.01, 1.0), verify=verify_costs)
any_text = st.lists(st.tuples(st.booleans(), st.sampled_from([0.2, 0.5, 0.65, 0.9])), max_size=40).map(
    lambda pairs: ([match for match, _ in pairs], [confidence for _, confidence in pairs])
)
any_threshold = st.sampled_from([0.0, 0.3, 0.65, SURER_THAN_SURE])


def test_a_text_that_is_drafted_right() -> None:
    """Two drafted tokens and the full model's own, twice; the last round has room for one, and its own."""
    played = rehearse([YES] * 8, SURE, COSTS, most=2, threshold=0.5)
    assert played == Rehearsal(tokens=8, rounds=3, time=2 * (0.5 + 2.0) + (0.25 + 1.5), drafted=5, accepted=5)
    assert played.alpha == 1.0
    assert played.speed_up == 8 / 6.75


def test_a_wrong_token_ends_the_round_and_the_next_goes_on_after_it() -> None:
    """Drafted: 0 and wrong 1 (2 in vain), then 2 and 3 and wrong 4, then none: position 5 is the last."""
    played = rehearse([YES, NO, YES, YES, NO, YES], SURE, COSTS, most=3, threshold=0.5)
    assert played == Rehearsal(tokens=6, rounds=3, time=2 * (0.75 + 4.0) + 1.0, drafted=6, accepted=3)
    assert played.alpha == 0.5


def test_an_unsure_token_ends_the_draft_and_costs_its_pass() -> None:
    """It would have been right; the full model says it instead, and the next draft begins after it."""
    played = rehearse([YES] * 5, [0.9, 0.4, 0.9, 0.9, 0.9], COSTS, most=3, threshold=0.5)
    first = 2 * 0.25 + 1.5  # a token, and a pass in vain
    second = 2 * 0.25 + 2.0  # positions 2 and 3; 4 is the full model's
    assert played == Rehearsal(tokens=5, rounds=2, time=first + second, drafted=3, accepted=3)


def test_confidence_at_the_threshold_is_enough() -> None:
    assert rehearse([YES, YES], [0.5, 0.5], COSTS, most=1, threshold=0.5).drafted == 1


def test_a_draft_may_be_unsure_from_the_start() -> None:
    played = rehearse([YES, YES], [0.1, 0.9], COSTS, most=3, threshold=0.5)
    assert played == Rehearsal(tokens=2, rounds=2, time=(0.25 + 1.0) + 1.0, drafted=0, accepted=0)
    assert played.alpha == 0.0


def test_a_text_of_nothing_and_of_one_token() -> None:
    assert rehearse([], [], COSTS, most=3, threshold=0.5) == Rehearsal()
    assert rehearse([NO], [0.9], COSTS, most=3, threshold=0.5) == Rehearsal(tokens=1, rounds=1, time=1.0)
    assert Rehearsal().speed_up == 1.0 and Rehearsal().alpha == 0.0


@given(any_text, any_costs, st.data(), any_threshold)
def test_each_position_is_committed_once(
    text: tuple[list[bool], list[float]], costs: Costs, data: st.DataObject, threshold: float
) -> None:
    most = data.draw(st.integers(1, len(costs.verify) - 1))
    played = rehearse(*text, costs, most, threshold)
    assert played.tokens == len(text[0]) == played.accepted + played.rounds
    assert played.accepted <= played.drafted <= most * played.rounds
    assert played.accepted <= sum(text[0])
    passes = (threshold > 0) * played.rounds + played.drafted
    assert played.rounds * min(costs.verify) + played.drafted * costs.draft <= played.time * (1 + 1e-9)
    assert played.time <= (played.rounds * max(costs.verify) + passes * costs.draft) * (1 + 1e-9)


@given(any_costs, st.integers(1, 5), st.data())
def test_all_right_is_as_fast_as_the_formula_says(costs: Costs, rounds: int, data: st.DataObject) -> None:
    """(k + 1) tokens in k * c + verify[k], where rounds fill the text; the best k is cost_model's."""
    most = data.draw(st.integers(1, len(costs.verify) - 1))
    length = rounds * (most + 1)
    played = rehearse([YES] * length, [0.9] * length, costs, most, 0.5)
    assert (played.alpha, played.rounds) == (1.0, rounds)
    assert played.speed_up == pytest.approx((most + 1) / (most * costs.draft + costs.verify[most]))
    text = [YES] * 420, [0.9] * 420  # a multiple of 2, 3, … 7
    best, _, _ = best_rehearsal([text], costs, [0.5])
    assert best.speed_up == pytest.approx(speed_up(1.0, costs.draft, list(costs.verify))[0])


@given(any_costs, st.integers(0, 30), st.data())
def test_none_right_is_a_token_a_round(costs: Costs, length: int, data: st.DataObject) -> None:
    most = data.draw(st.integers(1, len(costs.verify) - 1))
    played = rehearse([NO] * length, [0.9] * length, costs, most, 0.5)
    drafts = [min(most, length - 1 - position) for position in range(length)]
    assert (played.tokens, played.rounds, played.accepted) == (length, length, 0)
    assert played.drafted == sum(drafts)
    assert played.time == pytest.approx(sum(k * costs.draft + costs.verify[k] for k in drafts))


@given(any_text, any_costs)
def test_never_sure_enough_is_no_draft_but_a_pass_each_time(text: tuple[list[bool], list[float]], costs: Costs) -> None:
    """Except after the last token but one, where there is no room for any."""
    length = len(text[0])
    played = rehearse(*text, costs, most=len(costs.verify) - 1, threshold=SURER_THAN_SURE)
    assert (played.tokens, played.rounds, played.drafted, played.accepted) == (length, length, 0, 0)
    assert played.time == pytest.approx(length * costs.verify[0] + max(0, length - 1) * costs.draft)


def test_texts_are_added_up() -> None:
    one, two = Rehearsal(8, 3, 6.0, 5, 4), Rehearsal(2, 2, 4.0, 3, 0)
    assert one + two == Rehearsal(10, 5, 10.0, 8, 4)
    assert (one + two).speed_up == 1.0 and (one + two).alpha == 0.5


@given(st.lists(any_text, max_size=4), any_costs, st.lists(any_threshold, min_size=1, max_size=3, unique=True))
def test_the_best_is_the_fastest_of_all_lengths_and_thresholds(
    played: list[tuple[list[bool], list[float]]], costs: Costs, thresholds: list[float]
) -> None:
    """Over all texts at once: the time of all, not the mean of their speeds."""
    speeds = {}
    for most, threshold in itertools.product(range(1, len(costs.verify)), thresholds):
        each = [rehearse(*text, costs, most, threshold) for text in played]
        time = sum(one.time for one in each)
        speeds[most, threshold] = sum(one.tokens for one in each) / time if time else 1.0
    best, most, threshold = best_rehearsal(iter(played), costs, thresholds)
    assert best.speed_up == pytest.approx(max(speeds.values()))
    assert speeds[most, threshold] == pytest.approx(best.speed_up)
    assert best.tokens == sum(len(matches) for matches, _ in played)


def test_ties_go_to_the_shorter_draft_and_the_first_threshold() -> None:
    """One position has room for no draft: all ways are the same."""
    assert best_rehearsal([([YES], [0.9])], COSTS, [0.3, 0.0])[1:] == (1, 0.3)


def test_the_best_length_and_threshold_by_hand() -> None:
    """Every other token is wrong: one at a time never drafts those, and no pass is spent on finding them unsure."""
    matches, confidence = [YES, NO] * 6, [0.9, 0.3] * 6
    best, most, threshold = best_rehearsal([(matches, confidence)], COSTS, [0.0, 0.5])
    assert (most, threshold) == (1, 0.0)
    assert best == Rehearsal(tokens=12, rounds=6, time=6 * (0.25 + 1.5), drafted=6, accepted=6)


def test_the_best_may_be_slower_than_not_to_draft() -> None:
    best, _, _ = best_rehearsal([([NO] * 10, SURE)], COSTS, [0.0])
    assert best.speed_up == pytest.approx(10 / (9 * 1.75 + 1.0))
