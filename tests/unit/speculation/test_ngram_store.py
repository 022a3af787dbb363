"""Texts of other requests: found by their latest occurrence, forgotten when there is no room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swift_backend.speculation.ngram_store import KEY, NgramStore


def test_what_another_request_wrote_is_found() -> None:
    store = NgramStore(100)
    store.add([1, 2, 3, 4, 5, 6, 7])
    length, text, end = store.match([9, 2, 3, 4, 5])
    assert (length, text[end : end + 2]) == (4, [6, 7])
    assert store.match([1, 2, 3, 4, 5])[0] == 5
    assert store.match([9, 9, 4, 5]) == (0, [], 0)
    assert store.match([5]) == (0, [], 0)


def test_the_latest_request_speaks() -> None:
    store = NgramStore(100)
    store.add([1, 2, 3, 4, 5])
    store.add([1, 2, 3, 4, 6])
    _, text, end = store.match([1, 2, 3, 4])
    assert text[end] == 6


def test_nothing_is_kept_by_default() -> None:
    store = NgramStore(0)
    store.add([1, 2, 3, 4, 5])
    assert len(store) == 0 and store.match([1, 2, 3, 4])[0] == 0


@given(st.lists(st.lists(st.integers(0, 3), max_size=20), max_size=12), st.integers(0, 40))
def test_it_holds_no_more_than_it_may_and_what_it_says_is_there(texts: list[list[int]], capacity: int) -> None:
    store, kept = NgramStore(capacity), list[list[int]]()
    for text in texts:
        store.add(text)
        if KEY < len(text) <= capacity:
            kept.append(text)
            while sum(map(len, kept)) > capacity:
                kept.pop(0)
        assert len(store) == sum(map(len, kept)) <= capacity
    for text in texts:
        length, found, end = store.match(text)
        if length:
            assert found in kept and found[end - length : end] == text[-length:]
    assert len(store._places) <= len(store)
