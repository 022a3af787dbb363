"""Extents: who owns which slots."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swift_backend.kv_cache import KVCache
from swift_backend.sequence import Extent


def cache(capacity: int = 64) -> KVCache:
    return KVCache(2, capacity, kv_heads=1, head_dim=4, dtype=torch.float32, device=torch.device("cpu"))


def test_extents_are_rounded_up_and_follow_each_other() -> None:
    kv = cache()
    assert [kv.reserve(n) for n in (1, 17, 16)] == [Extent(0, 16), Extent(16, 32), Extent(48, 16)]
    assert kv.reserve(1) is None
    assert kv.tokens_used == 64


def test_a_gap_is_used_again() -> None:
    kv = cache()
    first, middle, last = kv.reserve(16), kv.reserve(16), kv.reserve(16)
    assert first and middle and last
    kv.release(middle)
    assert kv.reserve(20) is None
    assert kv.reserve(10) == Extent(16, 16)
    kv.check_integrity()


def test_the_whole_cache_fits_even_if_it_is_not_a_multiple() -> None:
    kv = cache(capacity=50)
    assert kv.reserve(51) is None
    assert kv.reserve(50) == Extent(0, 50)


def test_commit_moves_the_length_and_no_further_than_the_extent() -> None:
    kv = cache()
    extent = kv.reserve(16)
    assert extent
    kv.commit(extent, 10)
    kv.commit(extent, 6)
    assert extent.length == 16
    with pytest.raises(AssertionError, match="beyond"):
        kv.commit(extent, 1)


def test_an_extent_is_released_once() -> None:
    kv = cache()
    extent = kv.reserve(4)
    assert extent
    kv.release(extent)
    with pytest.raises(AssertionError, match="twice"):
        kv.release(extent)


def test_integrity_check_sees_overlap() -> None:
    kv = cache()
    first, second = kv.reserve(16), kv.reserve(16)
    assert first and second
    second.start = 8
    with pytest.raises(AssertionError, match="overlap"):
        kv.check_integrity()


def test_bytes_are_those_of_keys_and_values() -> None:
    assert cache(64).num_bytes == 2 * 2 * 64 * 4 * 4


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_any_order_of_reserve_and_release_keeps_extents_apart(actions: list[tuple[bool, int]]) -> None:
    kv, owned = cache(128), []
    for take, number in actions:
        if take and (extent := kv.reserve(number)):
            owned.append(extent)
        elif not take and owned:
            kv.release(owned.pop(number % len(owned)))
        kv.check_integrity()
        assert kv.tokens_used == sum(extent.size for extent in owned)


def test_what_is_kept_is_the_committed_part_rounded_up() -> None:
    """The room for an answer that never came is free at once."""
    kv = cache()
    extent = kv.reserve(64)
    assert extent
    kv.commit(extent, 17)
    kv.keep(extent)
    assert extent == Extent(0, 32, 17, kept=True)
    assert (kv.tokens_used, kv.tokens_kept) == (0, 32)
    assert kv.reserve(33) is None
    assert kv.reserve(32) == Extent(32, 32)
    assert (kv.tokens_used, kv.tokens_kept) == (32, 32)
    kv.release(extent)
    assert (kv.tokens_used, kv.tokens_kept) == (32, 0)


def test_what_is_kept_at_the_end_of_an_uneven_cache_stays_inside() -> None:
    kv = cache(capacity=50)
    extent = kv.reserve(50)
    assert extent
    kv.commit(extent, 50)
    kv.keep(extent)
    assert extent == Extent(0, 50, 50, kept=True)
    kv.check_integrity()


def test_a_request_may_fit_once_what_is_kept_is_gone() -> None:
    """Used 0-15 and 48-63, kept 16-31: a gap of 16 now, of 32 then."""
    kv = cache()
    extents = [kv.reserve(16) for _ in range(4)]
    _, kept, gap, _ = extents
    assert kept and gap
    kv.commit(kept, 16)
    kv.keep(kept)
    kv.release(gap)
    assert [kv.fits_without_kept(n) for n in (16, 32, 33)] == [True, True, False]
    assert kv.reserve(17) is None
    kv.release(kept)
    assert kv.reserve(32) == Extent(16, 32)


def test_nothing_larger_than_the_cache_ever_fits() -> None:
    kv = cache(capacity=50)
    assert kv.fits_without_kept(50)
    assert not kv.fits_without_kept(51)


def test_a_copy_is_the_beginning_in_every_layer_and_no_more() -> None:
    kv = cache()
    source, target = kv.reserve(16), kv.reserve(16)
    assert source and target
    for layer, both in enumerate(kv.slots):
        both[:16] = torch.arange(16.0)[:, None, None] + 100 * layer
        both[16:] = -1.0
    kv.commit(source, 9)
    kv.copy(source, target, 7)
    assert (source.length, target.length) == (9, 7)
    for layer, both in enumerate(kv.slots):
        expected = [100.0 * layer + n for n in range(16)] + [100.0 * layer + n for n in range(7)] + [-1.0] * 41
        assert both[:, 0, 0].tolist() == both[:, 1, 3].tolist() == expected


@pytest.mark.parametrize(("committed", "wanted", "there"), [(5, 6, 0), (16, 5, 1)])
def test_only_committed_tokens_are_copied_and_only_to_a_beginning(committed: int, wanted: int, there: int) -> None:
    kv = cache()
    source, target = kv.reserve(16), kv.reserve(16)
    assert source and target
    kv.commit(source, committed)
    kv.commit(target, there)
    with pytest.raises(AssertionError, match="nothing committed to copy"):
        kv.copy(source, target, wanted)


def test_the_tokens_of_a_path_move_to_the_front_of_the_tentative_ones() -> None:
    """All layers' keys and values, in order; committed slots, and what lies in place already, stay."""
    cache = KVCache(2, 32, 1, 4, torch.float32, torch.device("cpu"))
    extent = cache.reserve(16)
    assert extent is not None
    cache.commit(extent, 3)
    for layer, both in enumerate(cache.slots):
        both[:] = torch.arange(32).view(-1, 1, 1) + 100 * layer
    cache.gather(extent, [0, 2, 5])
    for layer, both in enumerate(cache.slots):
        assert (both[:8, 0, 0] - 100 * layer).tolist() == [0, 1, 2, 3, 5, 8, 6, 7]
    cache.gather(extent, [])
    cache.gather(extent, range(4))
    with pytest.raises(AssertionError, match="not tentative slots"):
        cache.gather(extent, [13])
