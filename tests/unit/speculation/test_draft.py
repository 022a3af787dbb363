"""Drafts as trees: who comes before whom, and what a round of them counts."""

from __future__ import annotations

import pytest

from swift_backend.request_stats import VERIFIED
from swift_backend.speculation.draft import LAYER_SKIP, NGRAM, OTHER, SIBLING, Draft, Guess

COMB = Draft((5, 6, 7, 16, 0), (-1, 0, 1, 0, 2), (NGRAM, LAYER_SKIP, LAYER_SKIP, SIBLING, SIBLING))


def test_a_mere_chain() -> None:
    draft = Draft((5, 6, 7))
    assert (draft.parents, draft.drafters, draft.chain_length) == ((-1, 0, 1), (OTHER,) * 3, 3)
    assert draft.before(-1) == () and draft.before(2) == (5, 6, 7)
    assert not Draft() and Draft().chain == ()
    assert Draft().round((), 1, 0.0).plain and not Draft(passes=1).round((), 1, 0.0).plain


def test_a_comb() -> None:
    assert (COMB.chain_length, COMB.chain) == (3, (5, 6, 7))
    assert COMB.before(3) == (5, 16) and COMB.before(4) == (5, 6, 7, 0)


def test_only_alternatives() -> None:
    draft = Draft((5, 6, 7), (-1, -1, -1), (SIBLING,) * 3, chain_length=0)
    assert draft.chain == () and draft.round((0,), 2, 0.0).accepted_chain == 0
    assert [draft.before(node) for node in range(3)] == [(5,), (6,), (7,)]


@pytest.mark.parametrize(
    ("path", "committed", "origins", "accepted_chain"),
    [
        ((), 1, (VERIFIED,), 0),
        ((0, 3), 3, (NGRAM, SIBLING, VERIFIED), 1),
        ((0, 1, 2, 4), 5, (NGRAM, LAYER_SKIP, LAYER_SKIP, SIBLING, VERIFIED), 3),
        ((0, 1), 2, (NGRAM, LAYER_SKIP), 2),  # a stop within what was accepted
        ((), 0, (), 0),  # broken logits
    ],
)
def test_what_becomes_of_it(
    path: tuple[int, ...], committed: int, origins: tuple[str, ...], accepted_chain: int
) -> None:
    one = COMB.round(path, committed, verify_seconds=0.25, decide_seconds=0.5)
    assert one.drafted == COMB.drafters
    assert (one.origins, one.accepted_chain, one.chain) == (origins, accepted_chain, 3)
    assert one.accepted == [origin for origin in origins if origin != VERIFIED]
    assert (one.verify_seconds, one.decide_seconds) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("after", "committed", "token"),
    [
        ((), [8, 9], 8),
        ((8,), [8, 9], 9),
        ((8, 9), [8, 9], None),
        ((7,), [8, 9], None),
        ((), [], None),
    ],
)
def test_what_the_full_model_said_where_a_guess_was_made(
    after: tuple[int, ...], committed: list[int], token: int | None
) -> None:
    assert Guess(after, 0.5, (1, 2)).outcome(committed) == token
