"""Where do keys and values live? One pair of tensors per layer, one contiguous extent per sequence.

    extent  [start, start + length) committed | [start + length, start + size) tentative or unused

Drafting and verification write the tail; rejecting a draft is leaving `length` where it is.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

import torch

from swift_backend.sequence import Extent

ROUND_TO = 16


class KVCache:
    """The K/V tensors of all layers, and who owns which slots.

    Three verbs: reserve an extent, commit tokens into it, release it. Nothing is cleared, and only a prompt that begins
    like another one is copied.

    tokens_used: slots that belong to a sequence. tokens_kept: those of kept extents, which are as good as free.
    slots[layer]: [capacity, 2 * kv_heads, head_dim], a token's keys before its values, so that one call writes both.
    keys[layer], values[layer]: views of it, [1, kv_heads, capacity, head_dim].
    """

    def __init__(
        self, num_layers: int, capacity: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate num_layers tensors of dtype [capacity, 2 * kv_heads, head_dim] on device.

        They are written to at once: memory that was only promised could be missing when the load comes.
        capacity: slots, one token each; torch's RuntimeError when the memory is not there.
        """
        shape = (capacity, 2 * kv_heads, head_dim)
        self.capacity = capacity
        self.slots = [torch.empty(shape, dtype=dtype, device=device).zero_() for _ in range(num_layers)]
        self.keys = [both[:, :kv_heads].transpose(0, 1).unsqueeze(0) for both in self.slots]
        self.values = [both[:, kv_heads:].transpose(0, 1).unsqueeze(0) for both in self.slots]
        self._extents: list[Extent] = []  # sorted by start
        # Added up here, since every step asks, and thousands of extents may be kept.
        self.tokens_used = 0
        self.tokens_kept = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all K/V tensors, used or not."""
        return sum(both.nbytes for both in self.slots)

    def reserve(self, num_tokens: int) -> Extent | None:
        """Give out the first gap that holds num_tokens slots (rounded up), or None; adds one extent."""
        size = self._rounded(num_tokens)
        start = self._first_gap(size, self._extents)
        if num_tokens > size or start is None:
            return None
        extent = Extent(start, size)
        insort(self._extents, extent, key=lambda one: one.start)
        self.tokens_used += size
        return extent

    def fits_without_kept(self, num_tokens: int) -> bool:
        """Whether num_tokens slots could be reserved if every kept extent were released."""
        left = (extent for extent in self._extents if not extent.kept)
        return num_tokens <= self.capacity and self._first_gap(self._rounded(num_tokens), left) is not None

    def commit(self, extent: Extent, num_tokens: int) -> None:
        """Make the next num_tokens slots part of the sequence; mutates extent.length."""
        assert 0 <= num_tokens <= extent.size - extent.length, "commit beyond the extent"
        extent.length += num_tokens

    def gather(self, extent: Extent, tentative: Iterable[int]) -> None:
        """Move some tentative slots, ascending offsets from extent.length, to the front of the tentative ones."""
        moved = [(offset, place) for place, offset in enumerate(tentative) if offset != place]
        if not moved:
            return
        end = extent.start + extent.length
        assert all(0 <= place < offset < extent.size - extent.length for offset, place in moved), "not tentative slots"
        for both in self.slots:
            for offset, place in moved:  # ascending, so that nothing is written over that is still to be moved
                both[end + place] = both[end + offset]

    def copy(self, source: Extent, target: Extent, num_tokens: int) -> None:
        """Begin an empty extent with the first num_tokens committed tokens of another; mutates target.length."""
        assert target.length == 0 and num_tokens <= min(source.length, target.size), "nothing committed to copy"
        for both in self.slots:
            both[target.start : target.start + num_tokens] = both[source.start : source.start + num_tokens]
        target.length = num_tokens

    def keep(self, extent: Extent) -> None:
        """Give back the slots after the committed ones (rounded up) and keep those; mutates the extent."""
        self.tokens_used -= extent.size
        extent.size = self._rounded(extent.length)
        extent.kept = True
        self.tokens_kept += extent.size

    def release(self, extent: Extent) -> None:
        """Give the slots back; an extent is released once."""
        index = next((i for i, owned in enumerate(self._extents) if owned is extent), None)
        assert index is not None, "extent released twice"
        del self._extents[index]
        if extent.kept:
            self.tokens_kept -= extent.size
        else:
            self.tokens_used -= extent.size

    def check_integrity(self) -> None:
        """AssertionError when extents overlap, leave the cache or hold more than they may."""
        end = 0
        for extent in self._extents:
            assert extent.start >= end, "extents overlap"
            assert 0 <= extent.length <= extent.size, "extent holds more than its size"
            end = extent.start + extent.size
        assert end <= self.capacity, "extent beyond the cache"
        for kept, count in ((False, self.tokens_used), (True, self.tokens_kept)):
            assert count == sum(one.size for one in self._extents if one.kept is kept), "slots are miscounted"

    def _rounded(self, num_tokens: int) -> int:
        return min(-(-num_tokens // ROUND_TO) * ROUND_TO, self.capacity)

    def _first_gap(self, size: int, extents: Iterable[Extent]) -> int | None:
        """Where the first `size` slots begin that none of the extents, sorted by start, owns."""
        start = 0
        for extent in extents:
            if extent.start - start >= size:
                return start
            start = extent.start + extent.size
        return start if self.capacity - start >= size else None
