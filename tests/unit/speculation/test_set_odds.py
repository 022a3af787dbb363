"""What the pool says of a layer set: of a text, and of a token by its confidence."""

from __future__ import annotations

import pytest

from swift_backend.params import SamplingParams
from swift_backend.sequence import Request, Sequence
from swift_backend.speculation.pool_entries import PRIOR_ALPHA
from swift_backend.speculation.set_odds import PoolOdds
from tests.unit.speculation.pools import CODE, PROSE, A, B, pool_of, prompt


def sequence(profile: object = None) -> Sequence:
    made = Sequence(Request("r", [5], SamplingParams(), print), 5, seed=0)
    made.profile = profile  # type: ignore[assignment]
    return made


def test_a_text_is_judged_by_those_like_it() -> None:
    pool = pool_of(A)
    for seed in range(6):
        pool.remember(prompt(CODE, seed), A, drafted=100, accepted=95)
        pool.remember(prompt(PROSE, seed), A, drafted=100, accepted=30)
    odds = PoolOdds(pool)
    assert odds.first(sequence(prompt(CODE, 9)), A) > 0.8 > 0.5 > odds.first(sequence(prompt(PROSE, 9)), A)
    assert odds.first(sequence(), A) == odds.first(sequence(prompt(CODE, 9)), B) == PRIOR_ALPHA


def test_a_token_is_about_as_likely_as_it_says_until_there_is_evidence() -> None:
    pool = pool_of(A)
    odds = PoolOdds(pool)
    assert odds.sure(A, 0.93, first=True) == pytest.approx(0.93)
    assert odds.sure(B, 0.93, first=True) == 0.93 and odds.sure(B, -1.0, first=True) == 0.0
    for _ in range(40):
        pool.note(A, first=True, confidence=0.93, accepted=False)
    assert odds.sure(A, 0.93, first=True) < 0.1 < 0.9 < odds.sure(A, 0.93, first=False)
    assert odds.sure(A, 0.6, first=True) == pytest.approx(0.6)


def test_later_tokens_have_odds_of_their_own() -> None:
    pool = pool_of(A)
    odds = PoolOdds(pool)
    assert odds.later(B) == PRIOR_ALPHA
    for _ in range(200):
        pool.note(A, first=True, confidence=0.9, accepted=False)
        pool.note(A, first=False, confidence=0.9, accepted=True)
    assert odds.later(A) > 0.9
