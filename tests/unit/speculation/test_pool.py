"""Which layer sets a pool knows, how each did, and which of them go."""

from __future__ import annotations

import copy
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_backend.speculation.pool import MEMORY, Pool
from swift_backend.speculation.pool_entries import CONFIDENCE_EDGES, PRIOR_ALPHA, PRIOR_WEIGHT, Evidence
from tests.unit.speculation.pools import (
    CODE,
    FULL,
    LAYERS,
    PROSE,
    A,
    B,
    C,
    D,
    E,
    alpha_only,
    expectations,
    finish,
    masks,
    note,
    pool_of,
    prompt,
    remembered,
)


@pytest.mark.parametrize(
    ("confidence", "bucket"),
    [(0.0, 0), (0.49, 0), (0.5, 1), (0.64, 1), (0.65, 2), (0.8, 3), (0.9, 4), (0.94, 4), (0.95, 5), (1.0, 5)],
)
def test_tokens_are_counted_by_confidence(confidence: float, bucket: int) -> None:
    evidence = Evidence()
    evidence.note(confidence, True)
    evidence.note(confidence, False)
    counts = [0.0] * (len(CONFIDENCE_EDGES) + 1)
    assert evidence.drafted == [*counts[:bucket], 2, *counts[bucket + 1 :]]
    assert evidence.accepted == [*counts[:bucket], 1, *counts[bucket + 1 :]]


def test_the_share_is_drawn_to_the_prior() -> None:
    evidence = Evidence()
    assert evidence.alpha(0.6, 4) == evidence.alpha(0.6, 0) == evidence.alpha_at(0.9, 0.6, 4) == pytest.approx(0.6)
    for accepted in (True, True, True, False):
        evidence.note(0.97, accepted)
    evidence.note(0.3, False)
    assert evidence.alpha(0.6, 0) == pytest.approx(3 / 5)
    assert evidence.alpha(0.2, 5) == pytest.approx((3 + 1) / 10)
    assert evidence.alpha_at(0.99, 0.5, 4) == pytest.approx((3 + 2) / 8)
    assert evidence.alpha_at(0.1, 0.5, 4) == pytest.approx(2 / 5)
    assert evidence.alpha_at(0.7, 0.5, 4) == 0.5


def test_fading_leaves_the_share_and_takes_the_weight() -> None:
    evidence = Evidence()
    for accepted in (True, True, True, False):
        evidence.note(0.7, accepted)
    evidence.fade(0.5)
    assert evidence.alpha(0.6, 0) == pytest.approx(3 / 4)
    assert evidence.alpha(0.5, 2) == pytest.approx((1.5 + 1) / 4)


def test_first_and_later_tokens_are_told_apart_and_count_together() -> None:
    pool = pool_of(A)
    pool.note(A, first=True, confidence=0.99, accepted=True)
    pool.note(A, first=False, confidence=0.2, accepted=False)
    arm = pool.arm(A)
    assert arm is not None
    assert (sum(arm.first.drafted), sum(arm.first.accepted)) == (MEMORY, MEMORY)
    assert (sum(arm.later.drafted), sum(arm.later.accepted)) == (1, 0)
    assert arm.drafted == pytest.approx(1 + MEMORY)
    assert arm.alpha == pytest.approx((MEMORY + PRIOR_ALPHA * PRIOR_WEIGHT) / (1 + MEMORY + PRIOR_WEIGHT))


def test_a_shift_shows_within_bounds_however_long_the_past() -> None:
    """Half way after 700 tokens, nine tenths after 2,400; a plain average of these 20,000 would hardly move."""
    pool, rng = pool_of(A, B), random.Random(1)
    note(pool, A, *(rng.random() < 0.9 for _ in range(20_000)))
    note(pool, B, True)
    before = copy.deepcopy(pool.arm(B))
    arm = pool.arm(A)
    assert arm is not None and arm.alpha == pytest.approx(0.9, abs=0.03)
    note(pool, A, *(rng.random() < 0.1 for _ in range(700)))
    assert arm.alpha == pytest.approx(0.5, abs=0.05)
    note(pool, A, *(rng.random() < 0.1 for _ in range(1700)))
    assert arm.alpha == pytest.approx(0.17, abs=0.04)
    assert pool.arm(B) == before


def test_masks_that_are_not_known_are_ignored() -> None:
    pool = pool_of(A)
    pool.note(B, first=True, confidence=0.9, accepted=True)
    pool.remember(CODE, B, 10, 5)
    assert pool.to_content() == pool_of(A).to_content()
    assert pool.arm(B) is None
    assert pool.expected_alpha(B, CODE) == PRIOR_ALPHA


def test_an_arm_that_is_there_stays_as_it_is() -> None:
    pool = Pool(LAYERS)
    first = pool.add(B, "similarity")
    pool.add(A, "search")
    note(pool, B, True)
    assert pool.add(B, "knapsack") is first is pool.arm(B)
    assert [(arm.skip_mask, arm.origin) for arm in pool] == [(B, "similarity"), (A, "search")]
    assert first.drafted == 1 and len(pool) == 2


def test_no_layer_and_all_layers_are_sets_like_others() -> None:
    pool = pool_of(0, FULL)
    note(pool, FULL, True)
    finish(pool, 0, CODE, 0.2, 1)
    again = Pool.from_content(LAYERS, pool.to_content())
    assert masks(again) == [0, FULL]
    assert again.suggest(CODE, alpha_only) == FULL
    assert again.suggest(CODE, lambda mask, alpha: -alpha) == 0


@pytest.mark.parametrize("mask", [-1, FULL + 1])
def test_a_mask_of_another_model_is_our_mistake(mask: int) -> None:
    with pytest.raises(AssertionError, match="out of range"):
        Pool(LAYERS).add(mask, "search")


def test_the_least_known_goes_and_its_records_too() -> None:
    pool = pool_of(A, B, C, most_arms=3)
    for mask, tokens in ((A, 5), (B, 2), (C, 9)):
        note(pool, mask, *[True] * tokens)
        finish(pool, mask, CODE, 0.5, 1)
    assert masks(pool) == [A, B, C]
    pool.add(D, "search")
    assert masks(pool) == [A, C, D]
    assert remembered(pool) == [(A, 100), (C, 100)]
    assert pool.add(B, "search").drafted == 0


def test_what_was_just_added_gets_its_chance() -> None:
    """It has no evidence yet, and would be the first to go for the next one."""
    pool = pool_of(A, B, most_arms=3)
    note(pool, A, *[True] * 9)
    note(pool, B, *[True] * 5)
    pool.add(C, "similarity")
    pool.add(D, "similarity")
    assert masks(pool) == [A, C, D]
    pool.add(E, "similarity")
    assert masks(pool) == [A, D, E]


def test_shipped_sets_never_go() -> None:
    """Nor do they keep others out: there is room for one, and for the next one while that has its chance."""
    pool = pool_of(A, B, origin="shipped", most_arms=2)
    pool.add(C, "search")
    note(pool, C, *[True] * 50)
    pool.add(D, "search")
    assert masks(pool) == [A, B, C, D]
    pool.add(E, "search")
    assert masks(pool) == [A, B, D, E]


@settings(max_examples=60, deadline=None)
@given(
    most_arms=st.integers(2, 5),
    steps=st.lists(st.tuples(st.sampled_from(["add", "note", "remember"]), st.integers(0, 11), st.booleans())),
)
def test_the_pool_stays_small_and_consistent(most_arms: int, steps: list[tuple[str, int, bool]]) -> None:
    pool, shipped = Pool(LAYERS, most_arms, most_records=4), set[int]()
    for what, mask, flag in steps:
        if what == "add":
            origin = "shipped" if flag and len(shipped) < most_arms - 1 else "search"
            arm = pool.add(mask, origin)
            assert pool.arm(mask) is arm
            shipped |= {mask} if arm.origin == "shipped" else set()
        elif what == "note":
            pool.note(mask, first=flag, confidence=mask / 11, accepted=flag)
        else:
            pool.remember(prompt(CODE, mask), mask, mask, mask * flag)
        records = remembered(pool)
        assert len(pool) <= max(most_arms, len(shipped) + 2) and shipped <= set(masks(pool))
        assert len(records) <= 4 and {mask for mask, _ in records} <= set(masks(pool))
        assert all(0 <= alpha <= 1 for alpha in expectations(pool, CODE))
    again = Pool.from_content(LAYERS, json.loads(json.dumps(pool.to_content())))
    assert again.to_content() == pool.to_content()
    assert expectations(again, PROSE) == expectations(pool, PROSE)
