"""The pool of layer sets: what it keeps, what it learns from tokens and from whole requests, and that it lasts."""

from __future__ import annotations

import copy
import functools
import json
import math
import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_backend.speculation.pool import (
    CONFIDENCE_EDGES,
    MEMORY,
    PRIOR_ALPHA,
    PRIOR_TOKENS,
    PRIOR_WEIGHT,
    Evidence,
    Pool,
    load_pool,
    save_pool,
)

LAYERS = 6
A, B, C, D, E = (0b11 << 2 * layer for layer in range(5))
FULL = (1 << 2 * LAYERS) - 1
# Prompts of two kinds: alike within about 0.01, and 0.2 apart.
CODE, PROSE = torch.full((3 * LAYERS,), 0.7), torch.full((3 * LAYERS,), 0.9)


def prompt(kind: torch.Tensor, seed: int) -> torch.Tensor:
    noise: torch.Tensor = torch.randn(kind.shape, generator=torch.Generator().manual_seed(seed))
    return kind + 0.01 * noise


def pool_of(*masks: int, origin: str = "search", most_arms: int = 16, most_records: int = 256) -> Pool:
    pool = Pool(LAYERS, most_arms, most_records)
    for mask in masks:
        pool.add(mask, origin)
    return pool


def note(pool: Pool, mask: int, *accepted: bool) -> None:
    for one in accepted:
        pool.note(mask, first=False, confidence=0.9, accepted=one)


def finish(pool: Pool, mask: int, kind: torch.Tensor, alpha: float, count: int, drafted: int = 100) -> None:
    """So many requests of a kind, that share of whose tokens was accepted."""
    for seed in range(count):
        pool.remember(prompt(kind, seed), mask, drafted, alpha * drafted)


def masks(pool: Pool) -> list[int]:
    return [arm.skip_mask for arm in pool]


def remembered(pool: Pool) -> list[tuple[int, float]]:
    """Mask and drafted tokens of each record."""
    return [(int(record["skip_mask"], 16), record["drafted"]) for record in pool.to_content()["records"]]


def expectations(pool: Pool, kind: torch.Tensor) -> list[float]:
    return [pool.expected_alpha(mask, kind) for mask in masks(pool)]


def alpha_only(mask: int, alpha: float) -> float:
    return alpha


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


def test_only_the_latest_requests_are_remembered() -> None:
    pool = pool_of(A, most_records=3)
    for drafted in range(1, 6):
        pool.remember(CODE, A, drafted, 0)
    assert remembered(pool) == [(A, 3), (A, 4), (A, 5)]


def test_without_records_the_arm_speaks_for_itself() -> None:
    pool = pool_of(A, B)
    note(pool, A, *[True, True, False] * 30)
    arm = pool.arm(A)
    assert arm is not None
    assert pool.expected_alpha(A, CODE) == pytest.approx(arm.alpha) != PRIOR_ALPHA
    assert pool.expected_alpha(B, CODE) == pytest.approx(PRIOR_ALPHA)


def test_similar_prompts_decide() -> None:
    """A does well on code and B on prose; over all texts they are the same."""
    pool = pool_of(A, B)
    for mask, code, prose in ((A, 0.9, 0.3), (B, 0.3, 0.9)):
        note(pool, mask, *[True, True, True, False, False] * 200)
        finish(pool, mask, CODE, code, 10)
        finish(pool, mask, PROSE, prose, 10)
    for seed in range(100, 110):
        one, other = prompt(CODE, seed), prompt(PROSE, seed)
        assert pool.expected_alpha(A, one) == pytest.approx(0.9, abs=0.03)
        assert pool.expected_alpha(B, one) == pytest.approx(0.3, abs=0.03)
        assert (pool.suggest(one, alpha_only), pool.suggest(other, alpha_only)) == (A, B)


def test_far_prompts_do_not() -> None:
    """Many of them, each with many tokens, move the expectation less than one request of the prompt's own kind."""
    pool = pool_of(A, B)
    note(pool, A, *[True, False] * 500)
    finish(pool, B, CODE, 0.5, 10)  # so that both kinds are known
    overall = pool.expected_alpha(A, CODE)
    finish(pool, A, PROSE, 1.0, 10, drafted=200)
    assert pool.expected_alpha(A, CODE) == pytest.approx(overall, abs=0.02)
    finish(pool, A, CODE, 0.0, 1, drafted=200)
    assert pool.expected_alpha(A, CODE) < overall - 0.3


def test_few_tokens_of_similar_prompts_are_outweighed() -> None:
    """PRIOR_TOKENS of them count as much as all that the arm did."""
    pool = pool_of(A)
    note(pool, A, *[True] * 1000)
    arm = pool.arm(A)
    assert arm is not None
    pool.remember(CODE, A, 2, 0)
    assert pool.expected_alpha(A, CODE) == pytest.approx(arm.alpha * PRIOR_TOKENS / (PRIOR_TOKENS + 2))
    pool.remember(CODE, A, PRIOR_TOKENS - 2, 0)
    assert pool.expected_alpha(A, CODE) == pytest.approx(arm.alpha / 2)
    pool.remember(CODE, A, 99 * PRIOR_TOKENS, 0)
    assert pool.expected_alpha(A, CODE) == pytest.approx(arm.alpha / 101)


def test_the_nearer_the_more_it_counts() -> None:
    pool = pool_of(A, B)
    finish(pool, B, CODE, 0.5, 20)
    finish(pool, B, PROSE, 0.5, 20)
    finish(pool, A, CODE, 0.0, 5)
    steps = [CODE + share * (PROSE - CODE) for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    expected = [pool.expected_alpha(A, step) for step in steps]
    assert expected == sorted(expected) and len(set(expected)) == len(steps)
    assert expected[0] < 0.1 and expected[-1] > 0.6


def test_a_coordinate_counts_by_how_much_it_varies() -> None:
    """One moves in thousands and the other in hundredths, and it is the second that tells the two arms apart."""
    pool, rng = pool_of(A, B), random.Random(2)
    for i in range(200):
        mask = (A, B)[i % 2]
        profile = torch.tensor([rng.gauss(0, 1000), (0.0, 0.05)[i % 2]])
        pool.remember(profile, mask, 100, 100)
        pool.remember(profile, A + B - mask, 100, 0)
    for loud in (-1000.0, 0.0, 1000.0):
        assert pool.suggest(torch.tensor([loud, 0.0]), alpha_only) == A
        assert pool.suggest(torch.tensor([loud, 0.05]), alpha_only) == B


def test_differences_below_the_noise_are_none() -> None:
    """All profiles the same to the sixth digit: their deviation is no measure, and zero is no divisor."""
    pool = pool_of(A)
    for i in range(5):
        pool.remember(CODE + 1e-6 * (i % 2), A, 100, 0)
    assert pool.expected_alpha(A, CODE + 5e-6) == pytest.approx(
        PRIOR_ALPHA * PRIOR_TOKENS / (PRIOR_TOKENS + 500), abs=1e-4
    )


def test_what_is_remembered_after_a_suggestion_counts_in_the_next() -> None:
    pool = pool_of(A, B)
    finish(pool, A, CODE, 0.6, 3)
    finish(pool, B, CODE, 0.5, 3)
    assert pool.suggest(CODE, alpha_only) == A
    finish(pool, B, CODE, 1.0, 6)
    assert pool.suggest(CODE, alpha_only) == B


def test_a_profile_that_changes_later_is_remembered_as_it_was() -> None:
    pool, profile = pool_of(A), CODE.clone()
    pool.remember(profile, A, 1000, 0)
    profile += 0.2
    assert pool.expected_alpha(A, CODE) < 0.1


def test_a_request_that_tells_nothing_is_not_remembered() -> None:
    """An overflow in half precision must not spoil what is known of all others, nor the file."""
    pool = pool_of(A)
    pool.remember(CODE, A, 0, 0)
    for bad in (math.nan, math.inf):
        pool.remember(torch.cat((CODE[1:], torch.tensor([bad]))), A, 10, 5)
    assert remembered(pool) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_overflow_is_like_no_other_prompt(bad: float) -> None:
    pool = pool_of(A)
    finish(pool, A, CODE, 0.0, 5)
    assert pool.expected_alpha(A, torch.cat((CODE[1:], torch.tensor([bad])))) == pytest.approx(PRIOR_ALPHA)


def test_profiles_of_another_length_are_of_another_measure() -> None:
    pool = pool_of(A)
    finish(pool, A, CODE, 0.0, 5)
    assert pool.expected_alpha(A, CODE[1:]) == pytest.approx(PRIOR_ALPHA)
    pool.remember(CODE[1:], A, 1000, 0)
    assert remembered(pool) == [(A, 1000)]
    assert pool.expected_alpha(A, CODE[1:]) < 0.1


def test_the_value_decides_and_gets_what_is_expected() -> None:
    pool = pool_of(A, B)
    finish(pool, A, CODE, 0.9, 10)
    finish(pool, B, CODE, 0.6, 10)
    expected = {mask: pool.expected_alpha(mask, CODE) for mask in (A, B)}
    asked: dict[int, float] = {}

    def cheap_b(mask: int, alpha: float) -> float:
        asked[mask] = alpha
        return alpha / (1.0 if mask == A else 0.5)

    assert pool.suggest(CODE, alpha_only) == A
    assert pool.suggest(CODE, cheap_b) == B
    assert asked == expected


@pytest.mark.parametrize("order", [(A, B, C), (C, A, B)])
def test_of_equals_the_oldest(order: tuple[int, ...]) -> None:
    pool = pool_of(*order)
    assert pool.suggest(CODE, alpha_only) == pool.best(alpha_only) == order[0]
    assert pool.suggest(CODE, lambda mask, alpha: float(mask != order[0])) == order[1]


def test_an_arm_is_not_taken_for_being_little_known() -> None:
    pool = pool_of(A, B)
    note(pool, A, *[True] * 500)
    assert pool.suggest(CODE, alpha_only) == A


def test_an_empty_pool_suggests_nothing() -> None:
    assert Pool(LAYERS).suggest(CODE, alpha_only) is None
    assert Pool(LAYERS).best(alpha_only) is None
    assert pool_of(A).best(alpha_only, origin="shipped") is None


def test_the_best_is_the_best_over_all_texts_and_of_one_origin() -> None:
    pool = pool_of(A, B, origin="shipped")
    pool.add(C, "search")
    for mask, accepted in ((A, [True, False] * 50), (B, [True, True, False] * 50), (C, [True] * 100)):
        note(pool, mask, *accepted)
        finish(pool, mask, CODE, 0.9 if mask == A else 0.0, 20)
    assert pool.suggest(CODE, alpha_only) == A
    assert pool.best(alpha_only) == C
    assert pool.best(alpha_only, origin="shipped") == B
    assert pool.best(lambda mask, alpha: -alpha, origin="shipped") == A


def test_a_shipped_pool_brings_its_arms_and_what_is_known_of_them() -> None:
    own, shipped = pool_of(A, B), pool_of(B, C)
    note(own, B, True)
    note(shipped, B, *[False] * 20)
    note(shipped, C, *[True] * 20)
    finish(own, B, CODE, 0.9, 1)
    finish(shipped, B, CODE, 0.1, 1, drafted=50)
    finish(shipped, C, CODE, 0.1, 1, drafted=70)
    own.merge(shipped)
    assert [(arm.skip_mask, arm.origin) for arm in own] == [(A, "search"), (B, "shipped"), (C, "shipped")]
    arms = own.arm(B), own.arm(C), shipped.arm(C)
    assert arms[0] and arms[1] and arms[2]
    assert (arms[0].drafted, arms[1].later) == (1, arms[2].later)
    assert remembered(own) == [(C, 70), (B, 100)]
    note(own, C, False)
    assert arms[1].later != arms[2].later


def test_what_becomes_shipped_does_not_make_room_for_the_rest() -> None:
    own, shipped = pool_of(A, B, C, most_arms=3), pool_of(D, A)
    note(own, A, True)
    note(own, B, *[True] * 9)
    finish(own, A, CODE, 0.5, 1)
    own.merge(shipped)
    assert masks(own) == [A, C, D]
    arm = own.arm(A)
    assert arm and arm.drafted == 1 and remembered(own) == [(A, 100)]


def test_others_proposals_do_not_change_who_shipped_an_arm() -> None:
    own, other = pool_of(A, origin="shipped"), pool_of(A, B)
    own.merge(other, origin="search")
    assert [(arm.skip_mask, arm.origin) for arm in own] == [(A, "shipped"), (B, "search")]


def test_a_merged_arm_that_had_to_go_leaves_no_records() -> None:
    own, other = pool_of(most_arms=2), pool_of(A, B, C)
    for mask in (A, B, C):
        finish(other, mask, CODE, 0.5, 1)
    own.merge(other, origin="search")
    assert masks(own) == [B, C]
    assert remembered(own) == [(B, 100), (C, 100)]


def test_a_pool_of_another_model_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="another model"):
        Pool(LAYERS).merge(Pool(LAYERS + 1))


def known_pool() -> Pool:
    pool = pool_of(A, B, origin="similarity")
    pool.add(0b11_1111_0000, "shipped")
    rng = random.Random(3)
    for _ in range(300):
        pool.note(rng.choice([A, B]), first=rng.random() < 0.3, confidence=rng.random(), accepted=rng.random() < 0.6)
    finish(pool, A, CODE, 0.7, 3)
    finish(pool, B, PROSE, 0.2, 2)
    return pool


def test_a_pool_outlives_its_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, pool = tmp_path / "new" / "pool.json", known_pool()
    assert save_pool(path, pool)
    again = load_pool(path, LAYERS)
    assert list(again) == list(pool)
    for kind in (CODE, PROSE):
        assert expectations(again, kind) == expectations(pool, kind)
    assert again.to_content() == pool.to_content()
    assert caplog.records == []


def test_masks_are_written_as_operators_read_them() -> None:
    content = known_pool().to_content()
    assert [arm["skip_mask"] for arm in content["arms"]] == ["0x3", "0xc", "0x3f0"]
    assert {record["skip_mask"] for record in content["records"]} == {"0x3", "0xc"}


def test_without_a_file_the_pool_is_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_pool(tmp_path / "pool.json", LAYERS).to_content() == Pool(LAYERS).to_content()
    assert caplog.records == []


def other_model(data: bytes) -> bytes:
    return data.replace(b'"num_layers": 6', b'"num_layers": 30')


def other_version(data: bytes) -> bytes:
    return data.replace(b'"version": 1', b'"version": 2')


def foreign(data: bytes) -> bytes:
    return b'{"version": 1, "content": {"weights": [1, 2]}}'


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize("damage", [other_model, other_version, foreign, cut])
def test_a_file_that_cannot_be_used_costs_what_was_learnt_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "pool.json"
    assert save_pool(path, known_pool())
    damaged = damage(path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    pool = load_pool(path, LAYERS)
    assert (len(pool), pool.num_layers) == (0, LAYERS)
    [record] = caplog.records
    assert record.levelname == "WARNING" and str(path) in record.getMessage()
    assert save_pool(path, pool_of(A))
    assert masks(load_pool(path, LAYERS)) == [A]


def inside(content: Any, keys: tuple[Any, ...]) -> Any:
    """content[key][key]… up to the last key."""
    return functools.reduce(operator.getitem, keys[:-1], content)


def put(*keys: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: operator.setitem(inside(content, keys), keys[-1], value)


def drop(*keys: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: operator.delitem(inside(content, keys), keys[-1])


ARM, RECORD = ("arms", 0), ("records", 1)
OVER = [0.0] * 5
MALFORMED = [
    (put("num_layers", value=7), "for 7 layers, and not for 6"),
    (put("num_layers", value=6.0), "num_layers must be of type int"),
    (put("num_layers", value="6"), "num_layers must be of type int"),
    (drop("num_layers"), "num_layers must be of type int"),
    (put("arms", value={}), "arms must be of type list"),
    (drop("arms"), "arms must be of type list"),
    (put(*ARM, value="0x3f0"), "must be of type"),
    (put(*ARM, "skip_mask", value=3), "skip_mask must be of type str"),
    (put(*ARM, "skip_mask", value="layers"), "skip_mask must be hexadecimal"),
    (put(*ARM, "skip_mask", value="-0x3"), "skip_mask must be of 12 bits"),
    (put(*ARM, "skip_mask", value="0x1000"), "skip_mask must be of 12 bits"),
    (put(*ARM, "skip_mask", value="0xc"), "arm 0xc is there twice"),
    (put(*ARM, "skip_mask", value="0xfff"), "0x3, which is no arm"),
    (put(*ARM, "origin", value=None), "origin must be of type str"),
    (drop(*ARM, "first"), "first must be of type dict"),
    (put(*ARM, "later", "drafted", value=3), "drafted must be of type list"),
    (put(*ARM, "later", "drafted", value=[1.0] * 5), "evidence must have 6 buckets"),
    (put(*ARM, "later", "accepted", value=[0.0] * 7), "evidence must have 6 buckets"),
    (put(*ARM, "later", "drafted", value=[-1.0, *OVER]), "a number is out of range"),
    (put(*ARM, "later", "accepted", value=[-1.0, *OVER]), "a number is out of range"),
    (put(*ARM, "later", "drafted", value=[math.nan, *OVER]), "a number is out of range"),
    (put(*ARM, "later", "drafted", value=[10**400, *OVER]), "a number is out of range"),
    (put(*ARM, "later", "drafted", value=[True, *OVER]), "a number is out of range, or is none"),
    (put(*ARM, "later", "accepted", value=["1", *OVER]), "a number is out of range, or is none"),
    (put(*ARM, "later", "accepted", value=[1e6, *OVER]), "more tokens are accepted than drafted"),
    (put("records", value=None), "records must be of type list"),
    (put(*RECORD, value=[]), "a number is out of range, or is none"),
    (put(*RECORD, "drafted", value="many"), "a number is out of range, or is none"),
    (put(*RECORD, "accepted", value=-1), "a number is out of range"),
    (put(*RECORD, "accepted", value=101), "no more accepted ones"),
    (put(*RECORD, "drafted", value=0), "no more accepted ones"),
    (put(*RECORD, "skip_mask", value="0x0"), "0x0, which is no arm"),
    (put(*RECORD, "profile", value="0.5"), "profile must be of type list"),
    (put(*RECORD, "profile", 4, value=None), "a number is out of range, or is none"),
    (put(*RECORD, "profile", 4, value=math.nan), "a number is out of range"),
    (put(*RECORD, "profile", 4, value=1e39), "a number is out of range"),
    (put(*RECORD, "profile", value=[0.5] * 17), "profiles differ in length"),
]


@pytest.mark.parametrize(("change", "reason"), MALFORMED)
def test_malformed_content_is_refused_with_the_reason(change: Callable[[dict[str, Any]], None], reason: str) -> None:
    content = known_pool().to_content()
    Pool.from_content(LAYERS, content)
    change(content)
    with pytest.raises(ValueError, match=reason):
        Pool.from_content(LAYERS, content)


@pytest.mark.parametrize("content", [None, [], "pool", 3, {}])
def test_what_is_no_pool_at_all_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match="num_layers must be of type int"):
        Pool.from_content(LAYERS, content)


def test_a_file_with_more_than_there_is_room_for() -> None:
    """All arms are read; there are fewer again when the next is added. Of the records it is the latest."""
    big = pool_of(*range(30), most_arms=30, most_records=500)
    for drafted in range(1, 301):
        big.remember(CODE, 7, drafted, 0)
    note(big, 7, True)
    pool = Pool.from_content(LAYERS, big.to_content())
    assert masks(pool) == list(range(30))
    assert remembered(pool) == [(7, drafted) for drafted in range(45, 301)]
    pool.add(100, "search")
    assert len(pool) == 16 and {7, 29, 100} <= set(masks(pool))
