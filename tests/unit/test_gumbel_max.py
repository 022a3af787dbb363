"""The best tokens are those that all tokens' noise would give."""

from __future__ import annotations

import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_backend import gumbel_max
from swift_backend.gumbel_max import FIRST, RARE, RARE_BITS, best_of_all
from swift_backend.noise import gumbel, gumbel_of


def by_all(logits: torch.Tensor, temperature: float, key: int, count: int) -> list[int]:
    """With the noise of every token."""
    scores = (logits.double() - logits.max()) / temperature
    scores += gumbel(torch.tensor(key), torch.arange(len(logits)))
    found = []
    for _ in range(min(count, len(logits))):
        found.append(int(scores.argmax()))
        scores[found[-1]] = -math.inf
    return found


@settings(deadline=None, max_examples=300)
@given(
    seed=st.integers(0, 2**32),
    vocabulary=st.sampled_from([1, 2, 7, 64, 5000]),
    spread=st.sampled_from([0.0, 0.01, 1.0, 3.0, 30.0]),
    offset=st.sampled_from([0.0, -50.0, 1e4, -1e6]),
    temperature=st.sampled_from([0.01, 0.5, 1.0, 2.0, 5.0]),
    count=st.integers(1, 3),
)
def test_they_are_those_of_all_tokens(
    seed: int, vocabulary: int, spread: float, offset: float, temperature: float, count: int
) -> None:
    """Flat rows, steep ones, and rows far from 0, where float32 is coarse and many tie."""
    logits = spread * torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) + offset
    found, scores = best_of_all(logits, temperature, seed * 7919, count)
    assert found == by_all(logits, temperature, seed * 7919, count)
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("finite", [1, 2, 5])
def test_what_cannot_be_drawn_comes_last_and_has_no_score(finite: int) -> None:
    logits = torch.full((500,), -math.inf)
    logits[torch.arange(finite) * 90 + 3] = torch.linspace(-1, 1, finite)
    found, scores = best_of_all(logits, 1.0, 5, 3)
    assert found[:finite] == by_all(logits, 1.0, 5, 3)[:finite]
    assert [score > -math.inf for score in scores] == [i < finite for i in range(3)]


def test_of_equal_ones_the_lowest_comes_first() -> None:
    """Where noise is lost beside the logits' own size."""
    with patch.object(gumbel_max, "gumbel_of", lambda drawn: torch.zeros(drawn.shape, dtype=torch.float64)):
        assert best_of_all(torch.ones(1000), 1.0, 5, 1)[0] == [0]


def test_a_far_token_with_rare_noise_is_found() -> None:
    """3,000 of them, 9 behind the likeliest one: together they win a fourth of the draws."""
    far = torch.cat((torch.full((1,), 9.0), torch.zeros(3000)))
    winners = [best_of_all(far, 1.0, key, 1)[0][0] for key in range(400)]
    assert winners == [by_all(far, 1.0, key, 1)[0] for key in range(400)]
    assert 20 < sum(token > 0 for token in winners) < 200


def test_bits_tell_rare_noise() -> None:
    edge = torch.tensor([RARE_BITS - 1, RARE_BITS + 2])
    below, above = gumbel_of(edge).tolist()
    assert below < RARE + 1e-6 and above > RARE - 1e-6
    assert FIRST >= 3, "a draft's favourites"
