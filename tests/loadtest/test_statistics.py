"""Percentiles, speed-ups and intervals are what their definitions say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.statistics import Timed, interval, median_speedup, percentile, percentiles, speedup

TIMED = st.builds(
    Timed, st.integers(1, 500), st.floats(0.01, 100.0), st.integers(1, 500), st.floats(0.01, 100.0)
)  # fmt: skip


def test_percentiles_lie_between_values() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.5
    assert percentile([10.0], 0.99) == 10.0
    assert percentile([float(i) for i in range(101)], 0.9) == pytest.approx(90.0)
    assert percentiles([1.0, 2.0, 3.0]) == {"p50": 2.0, "p90": pytest.approx(2.8), "p99": pytest.approx(2.98)}
    assert percentiles([]) == {"p50": None, "p90": None, "p99": None}
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_speed_up_is_of_sums_and_a_median_of_ratios() -> None:
    """A long prompt weighs more in the one, and as much as a short one in the other."""
    measured = [Timed(100, 1.0, 100, 2.0), Timed(10, 1.0, 10, 1.0), Timed(10, 1.0, 10, 1.0)]
    assert speedup(measured) == pytest.approx((120 / 3) / (120 / 4))
    assert median_speedup(measured) == 1.0
    assert speedup([Timed(30, 1.0, 20, 1.0)]) == pytest.approx(1.5)  # sampled answers may differ in length


@pytest.mark.parametrize("nothing", [Timed(0, 1.0, 5, 1.0), Timed(5, 0.0, 5, 1.0), Timed(5, 1.0, 0, 1.0)])
def test_nothing_is_no_speed_up(nothing: Timed) -> None:
    assert speedup([nothing]) == 0.0 == speedup([]) == median_speedup([])


@given(st.lists(TIMED, min_size=2, max_size=8))
def test_an_interval_holds_what_all_of_them_can_say(measured: list[Timed]) -> None:
    found = interval(measured)
    assert found is not None and found == interval(measured)
    low, high = found
    alone = [speedup([one]) for one in measured]
    assert low <= high
    assert median_speedup(measured) <= max(alone) + 1e-9
    if len(set(measured)) == 1:
        assert (low, high) == pytest.approx((alone[0], alone[0]))


def test_more_prompts_make_it_narrower_and_one_makes_none() -> None:
    few = [Timed(100, 1.0 + (i % 3), 100, 2.0) for i in range(6)]
    narrow, wide = interval(few * 8), interval(few)
    assert narrow is not None and wide is not None
    assert narrow[1] - narrow[0] < (wide[1] - wide[0]) / 2
    assert wide[0] < speedup(few) < wide[1]
    assert interval(few[:1]) is None
