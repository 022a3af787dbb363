"""The longest earlier occurrence of a text's end, against a search through the whole text."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from swift_backend.speculation.suffix_automaton import SuffixAutomaton

texts = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size - 1), max_size=60))


def occurs_earlier(text: list[int], length: int) -> list[int]:
    """Positions after earlier occurrences of the text's last `length` tokens."""
    suffix = text[len(text) - length :]
    return [end for end in range(length, len(text)) if text[end - length : end] == suffix]


@given(texts)
def test_the_longest_suffix_that_occurred_before(text: list[int]) -> None:
    """After every token: nothing longer occurs, and the place is a true one, the latest where few suffixes are."""
    automaton = SuffixAutomaton()
    for count, token in enumerate(text, 1):
        automaton.extend([token])
        so_far = text[:count]
        longest = max((n for n in range(1, count) if occurs_earlier(so_far, n)), default=0)
        length, begin = automaton.match()
        assert length == longest
        assert not longest or begin == max(occurs_earlier(so_far, longest))


@given(texts, st.integers(1, 12))
def test_what_came_after_it_comes_again(text: list[int], count: int) -> None:
    automaton = SuffixAutomaton(text)
    length, begin = automaton.match()
    expected = list(text)
    for i in range(count):
        if length:
            expected.append(expected[begin + i])
    assert automaton.continuation(count) == expected[len(text) :]


def test_token_zero_is_a_token_like_any_other() -> None:
    assert SuffixAutomaton([0, 0, 5, 0, 0]).continuation(2) == [5, 0]


def test_nothing_is_found_in_a_text_of_different_tokens() -> None:
    assert SuffixAutomaton(range(50)).match() == (0, 0)
    assert SuffixAutomaton(range(50)).continuation(3) == []
    assert SuffixAutomaton().continuation(3) == []


def test_a_text_of_one_token_takes_no_longer_than_others() -> None:
    """Each of its suffixes is a state of its own, which must not all be visited for each token."""

    def seconds(text: list[int]) -> float:
        started = time.perf_counter()
        SuffixAutomaton(text)
        return time.perf_counter() - started

    assert min(seconds([7] * 20_000) for _ in range(2)) < 20 * min(seconds(list(range(20_000))) for _ in range(2))
