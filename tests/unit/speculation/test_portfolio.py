"""Which few sets are chosen for all kinds of text?"""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from swift_backend.speculation.portfolio import LEAST_GAIN, portfolio

SPEEDS = {1: [1.1, 1.1, 1.1], 2: [1.5, 0.7, 0.7], 3: [0.7, 1.3, 0.7], 4: [1.4, 1.2, 0.7], 5: [1.1, 1.1, 1.1005]}


def test_who_saves_most_comes_next_and_each_kind_has_its_fastest() -> None:
    """4 serves two kinds; after it 2 and 3 each serve one a little better, and 5 none by enough."""
    assert portfolio(SPEEDS, 1, 8) == [1, 4, 3, 2]
    assert portfolio(SPEEDS, 1, 2) == [1, 4]
    assert portfolio(SPEEDS, 1, 1) == [1]


def time(chosen: tuple[int, ...], speeds: dict[int, list[float]]) -> float:
    return sum(1 / max(speeds[mask][kind] for mask in chosen) for kind in range(len(next(iter(speeds.values())))))


@given(st.lists(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3), min_size=1, max_size=6), st.integers(1, 4))
def test_it_saves_at_least_its_share_of_what_the_best_choice_does(rows: list[list[float]], most: int) -> None:
    """1 − 1/e of it, but for what was too little to be counted."""
    speeds = dict(enumerate(rows))
    chosen = portfolio(speeds, 0, most)
    assert chosen[0] == 0 and len(set(chosen)) == len(chosen) <= most
    others = itertools.combinations([mask for mask in speeds if mask], min(most, len(speeds)) - 1)
    best = min(time((0, *rest), speeds) for rest in others)
    alone = time((0,), speeds)
    slack = most * LEAST_GAIN * alone
    assert alone - time(tuple(chosen), speeds) >= (1 - 1 / 2.71828) * (alone - best) - slack
