"""Which drafted tokens get a row: what brings most, never a token without those before it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_backend.speculation.row_choice import Candidate, worth_verifying


def chain(*chances: float, owner: int = 0) -> list[Candidate]:
    return [Candidate(chance, owner, depth, 7 + depth, "d") for depth, chance in enumerate(chances)]


def line(per_row: float, rows: int = 20) -> list[float]:
    return [1.0 + per_row * k for k in range(rows + 1)]


def test_tokens_are_taken_while_their_chance_exceeds_the_price_of_their_row() -> None:
    """Two tokens a second, and a row of 0.2 seconds: 0.4."""
    assert worth_verifying(chain(0.9, 0.5, 0.41, 0.39), line(0.2), price=2.0) == chain(0.9, 0.5, 0.41)
    assert worth_verifying(chain(0.39), line(0.2), price=2.0) == []
    assert worth_verifying([], line(0.2), price=2.0) == []


def test_a_block_of_rows_is_taken_whole_or_not_at_all() -> None:
    """The first row of a block takes all its time: one token is not worth it, four are."""
    seconds = [1.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0]
    assert worth_verifying(chain(0.9), seconds, price=1.0) == []
    assert len(worth_verifying(chain(0.9, 0.8, 0.7, 0.6, 0.5), seconds, price=1.0)) == 4


def test_the_likeliest_of_all_drafts_come_first() -> None:
    first, second = chain(0.9, 0.2), chain(0.8, 0.7, 0.1, owner=1)
    sibling = Candidate(0.3, 0, 0, 99, "sibling", sibling=True)
    chosen = worth_verifying([*first, *second, sibling], line(0.25), price=1.0)
    assert chosen == [first[0], second[0], second[1], sibling]


def test_there_are_no_more_rows_than_are_priced() -> None:
    assert len(worth_verifying(chain(*[1.0] * 30), line(0.0, rows=12), price=1.0)) == 12


@given(
    st.lists(st.lists(st.floats(0.0, 1.0), max_size=5), max_size=3),
    st.lists(st.floats(0.0, 0.5), min_size=1, max_size=12),
    st.floats(0.1, 3.0),
)
def test_no_other_choice_brings_more(shares: list[list[float]], steps: list[float], price: float) -> None:
    """Of as many tokens as have rows; and the choice is closed: whatever leads to a chosen token is chosen."""
    candidates = []
    for owner, conditional in enumerate(shares):
        candidates += chain(*itertools.accumulate(conditional, lambda reach, one: reach * one), owner=owner)
    seconds = list(itertools.accumulate(steps, initial=1.0))
    chosen = worth_verifying(candidates, seconds, price)

    def value(some: list[Candidate]) -> float:
        return sum(one.chance for one in some) - price * (seconds[len(some)] - seconds[0])

    likeliest = sorted(candidates, key=lambda one: -one.chance)
    best = max(value(likeliest[:k]) for k in range(min(len(likeliest), len(seconds) - 1) + 1))
    assert value(chosen) == pytest.approx(best)
    for one in chosen:
        assert all(any(c.owner == one.owner and c.depth == d for c in chosen) for d in range(one.depth))
