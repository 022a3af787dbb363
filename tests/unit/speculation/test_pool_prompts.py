"""What a pool expects of its layer sets for a prompt, and which one it suggests."""

from __future__ import annotations

import math
import random

import pytest
import torch

from swift_backend.speculation.pool import PRIOR_TOKENS, Pool
from swift_backend.speculation.pool_entries import PRIOR_ALPHA
from tests.unit.speculation.pools import (
    CODE,
    LAYERS,
    PROSE,
    A,
    B,
    C,
    alpha_only,
    finish,
    note,
    pool_of,
    prompt,
    remembered,
)


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
