"""Running shares: what they are before there is evidence, after it, and when it is old."""

from __future__ import annotations

import random

import pytest

from swift_backend.speculation.chances import (
    LENGTH_PRIORS,
    MatchChances,
    OwnChance,
    RankChances,
    Shares,
    no_matches,
)


def test_a_share_goes_from_the_prior_to_the_evidence_and_forgets() -> None:
    shares = Shares.of(1, memory=0.9)
    assert shares.share(0, prior=0.3, weight=4) == pytest.approx(0.3)
    for _ in range(100):
        shares.note(0, right=True)
    assert shares.share(0, prior=0.3, weight=4) == pytest.approx((10 + 1.2) / 14, abs=0.01)
    for _ in range(100):
        shares.note(0, right=False)
    assert shares.share(0, prior=0.3, weight=4) == pytest.approx(1.2 / 14, abs=0.01)


@pytest.mark.parametrize(("length", "prior"), [(1, 0), (2, 1), (3, 2), (5, 3), (9, 4), (15, 5), (400, 6)])
def test_longer_matches_are_trusted_more(length: int, prior: int) -> None:
    assert MatchChances(no_matches()).chance(length) == pytest.approx(LENGTH_PRIORS[prior])


def test_what_all_requests_saw_speaks_for_a_new_one_and_its_own_text_for_itself() -> None:
    everyone = no_matches()
    seen = MatchChances(everyone)
    for _ in range(500):
        seen.note(3, right=False)
    new = MatchChances(everyone)
    assert new.chance(3) < 0.05 < LENGTH_PRIORS[3] == new.chance(4)
    for _ in range(30):
        new.note(3, right=True)
    assert new.chance(3) > 0.75
    assert MatchChances(everyone).chance(3) < 0.15


def test_alternatives_are_likelier_where_the_draft_is_unsure() -> None:
    ranks = RankChances()
    assert ranks.chance(1, 0.4) > ranks.chance(1, 0.9) > ranks.chance(2, 0.9) > 0
    assert ranks.chance(1, -1.0) <= 1


def test_how_often_an_alternative_was_right_is_learnt_by_confidence() -> None:
    """Four in ten times the second one, one in ten times the third; where the draft was sure, never."""
    ranks, rng = RankChances(), random.Random(1)
    for _ in range(3000):
        token = rng.choices([10, 11, 12, 13], [0.4, 0.4, 0.1, 0.1])[0]
        ranks.note((10, 11, 12), 0.55, token)
        ranks.note((10, 11, 12), 0.97, 10)
    assert ranks.chance(1, 0.6) == pytest.approx(0.4, abs=0.06)
    assert ranks.chance(2, 0.6) == pytest.approx(0.1, abs=0.04)
    assert ranks.chance(1, 0.96) < 0.01


def test_fewer_favourites_than_ranks() -> None:
    RankChances().note((10,), 0.5, 10)
    RankChances().note((), 0.5, 10)


def test_a_requests_own_drafts_outweigh_what_is_known_of_its_set() -> None:
    first = OwnChance()
    assert first.chance(0.7) == pytest.approx(0.7)
    for _ in range(40):
        first.note(right=False)
    assert first.chance(0.7) < 0.25
