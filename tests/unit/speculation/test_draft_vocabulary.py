"""Which tokens draft passes score: the frequent ones, and enough of the others."""

from __future__ import annotations

import json

import pytest

from swift_backend.speculation import draft_vocabulary
from swift_backend.speculation.draft_vocabulary import TokenCounts, draft_vocabulary_size


@pytest.mark.parametrize(
    ("vocabulary", "asked", "size"),
    [
        (151_936, None, 18_992),
        (49_152, None, 16_384),
        (20_000, None, 0),  # scoring most of it is no gain
        (64, None, 0),
        (151_936, 0, 0),
        (151_936, 30_000, 30_000),
        (64, 16, 16),
        (64, 100, 0),
    ],
)
def test_how_many(vocabulary: int, asked: int | None, size: int) -> None:
    assert draft_vocabulary_size(vocabulary, asked) == size


def test_the_first_ones_until_there_is_traffic_and_those_that_end_answers_always() -> None:
    assert sorted(TokenCounts().likeliest(4, always=[9], vocab_size=64)) == [0, 1, 2, 9]


def test_answers_count_more_than_prompts() -> None:
    counts = TokenCounts()
    counts.note(prompt=[50, 50, 50, 51], answer=[60])
    assert counts.likeliest(2, always=(), vocab_size=64) == [60, 50]
    assert counts.total == pytest.approx(1 + 4 * 0.2)


def test_old_traffic_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_vocabulary, "MOST_COUNTED", 1000)
    counts = TokenCounts()
    for _ in range(20):
        counts.note((), [5] * 100)
    for _ in range(8):
        counts.note((), [6] * 100)
    assert counts.total <= 1100
    assert counts.likeliest(1, (), 64) == [6]


def test_there_and_back() -> None:
    counts = TokenCounts()
    counts.note([4, 4, 7], [9, 9, 9])
    other = TokenCounts.from_content(json.loads(json.dumps(counts.to_content())))
    assert other.likeliest(3, (), 64) == counts.likeliest(3, (), 64) == [9, 4, 7]
    assert other.total == pytest.approx(counts.total, abs=0.1)


@pytest.mark.parametrize(
    "content", [[[1]], [1], [["1", 2]], [[1, "2"]], [[-1, 2]], [[1, -2]], [[True, 2]], [[1, 1e13]]]
)
def test_what_no_counts_can_be_is_refused(content: list[object]) -> None:
    with pytest.raises(ValueError, match="count"):
        TokenCounts.from_content(content)


def test_another_processs_counts_are_taken_where_nothing_is_known() -> None:
    """Else its own older file would come back at each save."""
    mine, theirs = TokenCounts(), TokenCounts()
    theirs.note((), [1] * 4 + [3] * 5)
    mine.merge(theirs)
    assert (mine.likeliest(2, (), 64), mine.total, mine.noted) == ([3, 1], 9, 0)
    mine.note((), [1] * 10)
    mine.merge(theirs)
    assert (mine.total, mine.noted) == (19, 10)
    theirs.note((), [8] * 30)
    assert mine.likeliest(3, (), 64)[:2] == [1, 3]


def test_tokens_of_another_model_are_left_out() -> None:
    counts = TokenCounts()
    counts.note((), [1000, 1000, 5])
    assert counts.likeliest(2, (), vocab_size=64) == [5, 0]
