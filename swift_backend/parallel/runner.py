"""How does a pass run on several devices? Rank 0 says what it does, and all do it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from swift_backend.batch import RowGroup
from swift_backend.kv_cache import KVCache
from swift_backend.model.decoder import Decoder, Head, Observer
from swift_backend.model.shadow import Shadow
from swift_backend.parallel.loading import CacheSizes
from swift_backend.parallel.orders import Copy, Gather, Pass, ShadowStep
from swift_backend.parallel.team import Team
from swift_backend.runner import Runner
from swift_backend.sequence import Extent


class MirroredCache(KVCache):
    """Rank 0's part of the cache, which alone knows who owns which slots; what moves here moves at every rank."""

    def __init__(self, team: Team, sizes: CacheSizes) -> None:
        super().__init__(*sizes)
        self._team = team

    def gather(self, extent: Extent, tentative: Iterable[int]) -> None:
        offsets = list(tentative)
        if offsets != list(range(len(offsets))):  # else nothing moves
            self._team.say(Gather(extent, offsets))
            super().gather(extent, offsets)

    def copy(self, source: Extent, target: Extent, num_tokens: int) -> None:
        self._team.say(Copy(source, target, num_tokens))
        super().copy(source, target, num_tokens)


@dataclass(frozen=True, slots=True)
class MirroredShadow(Shadow):
    """A shadow at every rank: the states are the same everywhere, and are sent along."""

    team: Team
    extent_start: int

    def after(self, index: int, states: Seq[torch.Tensor]) -> list[torch.Tensor]:
        positions = self._at.tolist()
        with self.team.together(ShadowStep(self.extent_start, positions, index, [one.cpu() for one in states])):
            return Shadow.after(self, index, states)


class ParallelRunner(Runner):
    """Rank 0's runner; raises RankFailure, here and in the cache, once any rank has failed.

    num_bytes: of the layers' weights, of each rank.
    """

    def __init__(self, decoder: Decoder, cache: MirroredCache, team: Team, num_bytes: Seq[int]) -> None:
        super().__init__(decoder, cache, decoder.embedding.device)
        self._team, self.num_bytes = team, tuple(num_bytes)

    def forward(
        self,
        groups: Seq[RowGroup],
        kept: Seq[int] | None = None,
        observe: Observer | None = None,
        head: Head | None = None,
    ) -> torch.Tensor:
        with self._team.together(Pass(groups, kept)):
            logits = super().forward(groups, kept, observe, head)
            if self.device.type == "cuda" and logits.shape[0]:
                torch.cuda.synchronize(self.device)  # a sum that was broken off is none, and must not become a token
        self._team.check()
        return logits

    def shadow(self, extent_start: int, token_ids: Seq[int], positions: Seq[int]) -> Shadow:
        own = super().shadow(extent_start, token_ids, positions)
        return MirroredShadow(own.embedded, own._decoder, own._cache, own._at, own._past, self._team, extent_start)

    def on_failure(self, tell: Callable[[Exception], None]) -> None:
        self._team.on_failure(tell)

    def close(self) -> None:
        self._team.close()
