"""How long drafts may be in a batch: the rate is maximal, what happens is learnt, and a no is not for ever."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_backend.pass_times import PassTimes
from swift_backend.speculation.batch_limit import BatchLimit, Evidence

FREE_ROWS = PassTimes(fixed=0.02, per_row=1e-6, per_key=1e-9)
ONLY_ROWS = PassTimes(fixed=1e-6, per_row=0.02, per_key=1e-9)
BETWEEN = PassTimes(fixed=0.012, per_row=0.0004, per_key=1e-9)


def play(
    limit: BatchLimit, rounds: int, sure: float, right: float, count: int = 4, times: PassTimes = BETWEEN
) -> list[int]:
    """The lengths of so many rounds, in which draft passes are sure and tokens right so often."""
    rng, lengths = random.Random(7), []
    for _ in range(rounds):
        longest = limit.longest(count, count, 5)
        lengths.append(longest)
        drafts = [draft(rng, longest, sure, right) for _ in range(count)] if longest else []
        open_rows = [sum(passes > i for passes, _, _ in drafts) for i in range(longest)]
        limit.note_round(drafts, 0.4 * sum(times.seconds(rows) for rows in open_rows if rows))
    return lengths


def draft(rng: random.Random, longest: int, sure: float, right: float) -> tuple[int, int, int]:
    """(passes, drafted, accepted) of one sequence."""
    passes = drafted = accepted = 0
    while drafted < longest:
        passes += 1
        if rng.random() >= sure:
            break
        drafted += 1
    while accepted < drafted and rng.random() < right:
        accepted += 1
    return passes, drafted, accepted


@pytest.mark.parametrize("count", [2, 8, 32])
def test_drafts_are_long_where_rows_are_free(count: int) -> None:
    assert BatchLimit(FREE_ROWS, 0.5).longest(count, count, 5) == 5
    assert BatchLimit(FREE_ROWS, 0.5).longest(count, count, 12) == 12


def test_one_that_drafts_does_not_hold_up_seven_that_wait_for_it() -> None:
    """A draft pass that is half a full one pays from more than half of them on, even where rows are free."""
    assert [BatchLimit(FREE_ROWS, 0.5).longest(8, drafting, 5) for drafting in (1, 3, 5, 8)] == [0, 0, 5, 5]


@pytest.mark.parametrize("count", [2, 8, 32])
def test_nothing_is_drafted_where_each_row_costs_a_pass(count: int) -> None:
    assert BatchLimit(ONLY_ROWS, 0.5).longest(count, count, 5) == 0


@pytest.mark.parametrize("times", [FREE_ROWS, ONLY_ROWS, BETWEEN])
def test_who_is_alone_is_not_limited(times: PassTimes) -> None:
    """The brake decides there, by the request's own rounds; nor is a batch in which nobody drafts any evidence."""
    limit = BatchLimit(times, 0.99)
    assert limit.longest(1, 1, 5) == 5
    play(limit, 50, sure=1.0, right=0.0)
    assert limit.longest(1, 1, 5) == 5
    assert limit.longest(8, 0, 5) == 5


def test_the_length_falls_with_the_number_of_sequences() -> None:
    lengths = {}
    for count in (2, 4, 8, 16, 32, 64):
        limit = BatchLimit(BETWEEN, 0.2)
        limit.note_round([(50, 45, 36)], 0.2 * 50 * BETWEEN.seconds(1))  # sure 9 of 10, right 8 of 10
        lengths[count] = limit.longest(count, count, 8)
    assert lengths == {2: 3, 4: 2, 8: 2, 16: 1, 32: 1, 64: 0}


def rate(times: PassTimes, cost: float, sure: float, right: float, n: int, m: int, length: int) -> float:
    """Committed tokens per second, added up draft pass by draft pass; one that less than one row is in is rare."""
    tokens, rows, seconds, open_rows = float(n), float(n), 0.0, float(m)
    chance = 1.0
    for _ in range(length):
        seconds += cost * (times.seconds(open_rows) if open_rows >= 1 else open_rows * times.seconds(1))
        open_rows *= sure
        chance *= sure * right
        rows += open_rows
        tokens += m * chance
    return tokens / (seconds + times.seconds(rows))


@given(
    st.builds(PassTimes, st.floats(1e-4, 0.1), st.floats(1e-6, 0.01), st.just(1e-9)),
    st.floats(0.05, 1.0),
    st.integers(1, 60),
    st.data(),
)
def test_no_other_length_brings_more_tokens_per_second(
    times: PassTimes, cost: float, passes: int, data: st.DataObject
) -> None:
    drafted = data.draw(st.integers(0, passes))
    accepted = data.draw(st.integers(0, drafted))
    n = data.draw(st.integers(2, 40))
    m = data.draw(st.integers(1, n))
    limit = BatchLimit(times, cost)
    limit.note_round([(passes, drafted, accepted)], cost * passes * times.seconds(1))
    sure, right = (drafted + 0.5) / (passes + 0.5), (accepted + 0.5) / (drafted + 0.5)
    rates = [rate(times, cost, sure, right, n, m, length) for length in range(9)]
    assert rates[limit.longest(n, m, 8)] == pytest.approx(max(rates), rel=1e-9)


def test_rejected_drafts_end_drafting() -> None:
    """First as long as there is no evidence, then after a round or two not at all."""
    lengths = play(BatchLimit(BETWEEN, 0.4), 10, sure=1.0, right=0.0)
    assert lengths == [5, 0, 0, 0, 0, 0, 0, 0, 0, 0]


def test_unsure_drafts_end_drafting() -> None:
    """They give no token, and cost a pass each time."""
    lengths = play(BatchLimit(BETWEEN, 0.4), 10, sure=0.0, right=1.0)
    assert lengths == [5, 0, 0, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("sure", "right"), [(1.0, 0.0), (0.0, 1.0), (0.9, 0.2)])
def test_drafting_is_tried_again_but_seldom(sure: float, right: float) -> None:
    """Tries are short: draft passes take less than a fiftieth of the full passes' time."""
    lengths = play(BatchLimit(BETWEEN, 0.4), 2000, sure, right)[20:]
    tries = [length for length in lengths if length]
    assert 4 < len(tries) < 0.05 * len(lengths)
    assert 0.4 * sum(tries) < 0.02 * len(lengths)


def test_drafting_comes_back_when_drafts_are_right_again() -> None:
    limit = BatchLimit(BETWEEN, 0.4)
    assert set(play(limit, 300, sure=1.0, right=0.0)[-100:]) == {0, 1}
    lengths = play(limit, 300, sure=1.0, right=1.0)
    assert set(lengths[-100:]) == {5}


def test_good_drafts_go_on() -> None:
    assert set(play(BatchLimit(BETWEEN, 0.4), 200, sure=0.95, right=0.95)) == {2, 3, 4, 5}


def test_the_cost_of_draft_passes_is_measured() -> None:
    """Expected to be cheap, they turn out as dear as full passes; one that hangs counts as two."""
    limit = BatchLimit(FREE_ROWS, 0.1)
    for _ in range(200):
        limit.note_round([(5, 5, 5)] * 4, 1.5 * 5 * FREE_ROWS.seconds(4))
    assert limit.longest(4, 4, 5) == 0
    hung, quiet = BatchLimit(FREE_ROWS, 0.5), BatchLimit(FREE_ROWS, 0.5)
    hung.note_round([(5, 5, 5)] * 4, 60.0)
    quiet.note_round([(5, 5, 5)] * 4, 2.0 * 5 * FREE_ROWS.seconds(4))
    assert hung._draft_cost == pytest.approx(quiet._draft_cost)


def test_rounds_without_a_draft_pass_are_no_evidence() -> None:
    limit = BatchLimit(BETWEEN, 0.4)
    limit.note_round([(10, 9, 8)], 0.4 * 10 * BETWEEN.seconds(1))
    before = limit._evidence.sure, limit._evidence.right, limit._draft_cost
    limit.note_round([(0, 0, 0)] * 8, 0.0)
    limit.note_round([], 0.0)
    assert (limit._evidence.sure, limit._evidence.right, limit._draft_cost) == before


def test_evidence() -> None:
    """Without any, drafts are taken to be sure and right; it fades, and leaves that behind."""
    evidence = Evidence()
    assert (evidence.sure, evidence.right) == (1.0, 1.0)
    evidence.add(passes=10, drafted=8, accepted=2)
    assert (evidence.sure, evidence.right) == (8.5 / 10.5, 2.5 / 8.5)
    evidence.fade()
    assert (evidence.passes, evidence.drafted, evidence.accepted) == pytest.approx((9.7, 7.76, 1.94))
    for _ in range(1000):
        evidence.fade()
    assert (evidence.sure, evidence.right) == pytest.approx((1.0, 1.0))
