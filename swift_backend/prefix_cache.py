"""Which earlier text can a prompt start from? Extents are kept after their requests, until their room is needed."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from swift_backend.kv_cache import ROUND_TO, KVCache
from swift_backend.sequence import Extent, Sequence

Ints = NDArray[np.int32]
# Copying fewer tokens than an extent is rounded to saves nothing.
LEAST_SHARED = ROUND_TO


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Committed tokens, int32 [n], and the extent that holds their keys and values.

    profile: of a prompt that begins like this, where it is known; see speculation.similarity.Profile.
    """

    tokens: Ints
    extent: Extent
    profile: torch.Tensor | None


class PrefixCache:
    """Hands out the cache's extents: a prompt that begins like an earlier one starts from a copy of that part.

    What a request leaves behind is kept and counts as free: the least recently used is dropped first, and a request
    waits only when dropping all of it would not make room. Only committed tokens are ever copied. It shows: a prompt
    that shares its beginning with somebody else's is answered sooner.
    """

    def __init__(self, cache: KVCache, *, enabled: bool) -> None:
        """With enabled=False nothing is kept and nothing is shared."""
        self._cache = cache
        self._enabled = enabled
        self._kept: list[Prefix] = []  # least recently used first

    def reserve(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        """Give the sequence its extent, with the longest beginning that is known already; False where it must wait.

        Mutates sequence.extent and its profile; drops kept extents as far as their room is needed.
        """
        num_tokens = sequence.num_prompt_tokens + sequence.max_tokens
        if not self._cache.fits_without_kept(num_tokens):
            return False
        prompt = np.array(sequence.request.prompt_ids, dtype=np.int32)
        source, shared = self._longest(prompt, running) if self._enabled else (None, 0)
        extent = self._cache.reserve(num_tokens)
        for oldest in sorted(self._kept, key=lambda prefix: prefix is source):  # the source goes last
            if extent is not None:
                break
            self._drop(oldest)
            extent = self._cache.reserve(num_tokens)
            source = None if oldest is source else source
        assert extent is not None
        sequence.extent = extent
        if source is not None:
            self._cache.copy(source.extent, extent, shared)
            sequence.begin_with(shared, source.profile)
            self._touch(source)
        return True

    def give_back(self, sequence: Sequence) -> None:
        """Take the extent of a sequence that has ended, and keep it where it may be of use; mutates sequence.extent."""
        extent, sequence.extent = sequence.extent, None
        assert extent is not None
        tokens = np.array(sequence.tokens[: extent.length], dtype=np.int32)
        if not self._enabled or len(tokens) < LEAST_SHARED or sequence.finish_reason == "error":
            self._cache.release(extent)
            return
        if longer := next((prefix for prefix in self._kept if _shared(prefix.tokens, tokens) == len(tokens)), None):
            self._cache.release(extent)
            self._touch(longer)
            return
        for shorter in [prefix for prefix in self._kept if _shared(prefix.tokens, tokens) == len(prefix.tokens)]:
            self._drop(shorter)
        self._cache.keep(extent)
        self._kept.append(Prefix(tokens, extent, sequence.profile))

    def _longest(self, prompt: Ints, running: Iterable[Sequence]) -> tuple[Prefix | None, int]:
        """Whose beginning the prompt shares most of, and how much; its last token must be computed in any case."""
        best, most = None, LEAST_SHARED - 1
        for prefix in (*self._kept, *_prefixes(prompt, running)):
            shared = min(_shared(prefix.tokens, prompt), len(prompt) - 1)
            if shared > most:
                best, most = prefix, shared
        return best, most

    def _touch(self, prefix: Prefix) -> None:
        if prefix in self._kept:
            self._kept.remove(prefix)
            self._kept.append(prefix)

    def _drop(self, prefix: Prefix) -> None:
        self._kept.remove(prefix)
        self._cache.release(prefix.extent)


def _prefixes(prompt: Ints, running: Iterable[Sequence]) -> Iterable[Prefix]:
    """The computed part of running prompts that begin like this one."""
    beginning = prompt[:LEAST_SHARED].tolist()
    for sequence in running:
        ids: Seq[int] = sequence.request.prompt_ids
        if sequence.extent is not None and ids[:LEAST_SHARED] == beginning:
            computed = np.array(ids[: sequence.kv_len], dtype=np.int32)
            yield Prefix(computed, sequence.extent, sequence.profile)


def _shared(one: Ints, other: Ints) -> int:
    """The length of the beginning that both have."""
    length = min(len(one), len(other))
    if not length or one[0] != other[0]:
        return 0
    differences = np.flatnonzero(one[:length] != other[:length])
    return int(differences[0]) if len(differences) else length
