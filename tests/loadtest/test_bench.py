"""The benchmark's figures from answers that are known."""

from __future__ import annotations

import pytest

from loadtest.bench import compare
from swift_backend.llm import Completion
from swift_backend.request_stats import RequestStats


def answer(ids: list[int], seconds: float, **stats: int) -> Completion:
    counted = RequestStats(decode_seconds=seconds, output_tokens=len(ids), **stats)
    return Completion("", ids, "length", 1, counted)


def test_a_difference_is_counted_and_ratios_are_of_sums() -> None:
    pairs = [
        (answer([1, 2, 3], 2.0), answer([1, 2, 3], 1.0, rounds=1, draft_tokens=2, accepted_draft_tokens=1)),
        (answer([1, 2, 3], 4.0), answer([1, 2, 4], 2.0, rounds=3, draft_tokens=6, accepted_draft_tokens=3)),
    ]
    assert compare(pairs) == {
        "speedup": 2.0,
        "acceptance_rate": 0.5,
        "drafted_per_round": 2.0,
        "tokens_per_round": pytest.approx((2 + 2 / 3) / 2),
        "identical_to_off": 0.5,
    }


def test_nothing_drafted_is_no_division_by_zero() -> None:
    assert compare([(answer([1, 2], 1.0), answer([1, 2], 1.0, rounds=1))])["acceptance_rate"] == 0
