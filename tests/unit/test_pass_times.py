"""What a pass costs: the formula, its inverse, and what is learnt from measurements."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_backend import SwiftLLM
from swift_backend.pass_times import PassTimes, measure

parts = st.floats(1e-7, 1e-1)


def keys_of(rows: int, first: int) -> int:
    return sum(first + i + 1 for i in range(rows))


def test_seconds_of_a_pass() -> None:
    times = PassTimes(fixed=0.010, per_row=0.001, per_key=0.00001)
    assert times.seconds(0) == 0.010
    assert times.seconds(4, 300) == pytest.approx(0.017)


def test_rows_that_fit() -> None:
    """Beside 4 rows in 20 ms there are 6 ms left: 6 rows by themselves, fewer where each looks far back."""
    times = PassTimes(fixed=0.010, per_row=0.001, per_key=0.000001)
    assert times.rows_within(0.0201, 4, 0, first=0) == 6
    assert times.rows_within(0.0201, 4, 0, first=3000) == 1
    assert times.rows_within(0.0201, 4, 5000, first=0) == 1
    assert times.rows_within(0.014, 4, 0, first=0) == 0
    assert times.rows_within(0.002, 4, 0, first=0) == 0


@given(parts, parts, st.floats(1e-9, 1e-3), st.integers(0, 40), st.integers(0, 4000), st.integers(1, 3000))
def test_rows_within_is_the_inverse_of_seconds(
    fixed: float, per_row: float, per_key: float, rows: int, first: int, more: int
) -> None:
    """Exactly the time of `more` rows holds `more`, and a hair less holds one less."""
    times = PassTimes(fixed, per_row, per_key)
    keys = rows * 100
    least = times.seconds(rows + more, keys + keys_of(more, first))
    next_one = times.seconds(rows + more + 1, keys + keys_of(more + 1, first))
    assert times.rows_within(least + 0.01 * (next_one - least), rows, keys, first) == more
    assert times.rows_within(least + 0.99 * (next_one - least), rows, keys, first) == more


TRUE = PassTimes(fixed=0.012, per_row=0.0008, per_key=0.000002)


def passes(seed: int, count: int) -> list[tuple[int, int]]:
    """Decoding passes of some sequences, now and then with a chunk."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        rows, context = rng.randrange(1, 17), rng.randrange(20, 1000)
        chunk = rng.randrange(0, 200) if rng.random() < 0.3 else 0
        made.append((rows + chunk, rows * context + keys_of(chunk, 0)))
    return made


@pytest.mark.parametrize("wrong_by", [0.1, 10.0])
def test_what_is_measured_wins_over_a_wrong_start(wrong_by: float) -> None:
    """Under 20 % of noise, from ten times too little and too much, within 20 % after 300 passes."""
    rng = random.Random(1)
    times = PassTimes(TRUE.fixed * wrong_by, TRUE.per_row * wrong_by, TRUE.per_key * wrong_by)
    for rows, keys in passes(2, 300):
        times.note(rows, keys, TRUE.seconds(rows, keys) * rng.uniform(0.8, 1.2))
    for rows, keys in ((1, 100), (8, 2000), (16, 12_000), (100, 8000), (200, 20_000)):
        assert times.seconds(rows, keys) == pytest.approx(TRUE.seconds(rows, keys), rel=0.2)


def test_parts_that_were_taken_for_each_other_are_told_apart() -> None:
    """All cost in the rows, none in the pass: a batch would never get a draft."""
    times = PassTimes(fixed=0.0005, per_row=0.012, per_key=0.000002)
    for rows, keys in passes(3, 2000):
        times.note(rows, keys, TRUE.seconds(rows, keys))
    for rows, keys in ((1, 100), (8, 2000), (200, 20_000)):
        assert times.seconds(rows, keys) == pytest.approx(TRUE.seconds(rows, keys), rel=0.2)


@pytest.mark.parametrize("outlier", [0.01, 100.0])
def test_one_outlier_moves_little(outlier: float) -> None:
    """The machine was busy elsewhere, or the clock was set: nobody may pay for it for long."""
    times = PassTimes(TRUE.fixed, TRUE.per_row, TRUE.per_key)
    times.note(8, 2000, outlier * TRUE.seconds(8, 2000))
    assert times.seconds(8, 2000) == pytest.approx(TRUE.seconds(8, 2000), rel=0.15)
    for rows, keys in passes(4, 20):
        times.note(rows, keys, TRUE.seconds(rows, keys))
    assert times.seconds(8, 2000) == pytest.approx(TRUE.seconds(8, 2000), rel=0.02)


def test_a_pass_that_took_no_time_is_no_error() -> None:
    times = PassTimes(TRUE.fixed, TRUE.per_row, TRUE.per_key)
    times.note(1, 1, 0.0)
    assert 0 < times.fixed < TRUE.fixed


@pytest.mark.parametrize("capacity", [2, 5, 400])
def test_measuring_gives_costs_of_every_kind(tiny_model: Callable[[str], Path], capacity: int) -> None:
    """In a cache of any size; a part of zero could never grow, since learning multiplies."""
    runner = SwiftLLM(tiny_model("qwen3"), "float32", kv_cache_tokens=capacity).engine.runner
    times = measure(runner)
    assert times.fixed > 0 and times.per_row > 0 and times.per_key > 0
    assert times.seconds(1, 1) < 0.5
    assert runner.cache.tokens_used == 0
