"""What is said between rank 0 and the others? Orders, which are obeyed one by one, and a few answers while loading."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from swift_backend.batch import RowGroup
from swift_backend.model.config import ModelConfig
from swift_backend.model.linear import Kernels
from swift_backend.parallel.share import Share
from swift_backend.runner import Runner
from swift_backend.sequence import Extent


@dataclass(frozen=True, slots=True)
class Assignment:
    """The first order: what to load.

    config: of the whole model. dtype: the name of the weights'. threads: that may compute; None for a GPU. kernels:
    what the linears must be.
    meeting_place: see Group; start_ranks chooses it.
    """

    share: Share
    directory: Path
    config: ModelConfig
    dtype: str
    device: torch.device
    threads: int | None
    kernels: Kernels
    meeting_place: Path = Path()


@dataclass(frozen=True, slots=True)
class Room:
    """The second: allocate a cache of so many slots."""

    capacity: int


@dataclass(frozen=True, slots=True)
class Pass:
    """Runner.forward, of which rank 0 alone wants the logits."""

    groups: Seq[RowGroup]
    kept: Seq[int] | None

    def obey(self, runner: Runner) -> None:
        runner.forward([replace(group, num_logits=0) for group in self.groups], self.kept)


@dataclass(frozen=True, slots=True)
class Gather:
    """KVCache.gather."""

    extent: Extent
    tentative: Seq[int]

    def obey(self, runner: Runner) -> None:
        runner.cache.gather(self.extent, self.tentative)


@dataclass(frozen=True, slots=True)
class Copy:
    """KVCache.copy."""

    source: Extent
    target: Extent
    num_tokens: int

    def obey(self, runner: Runner) -> None:
        runner.cache.copy(self.source, self.target, self.num_tokens)


@dataclass(frozen=True, slots=True)
class ShadowStep:
    """Shadow.after: of the states of candidates, which rank 0 alone chooses from.

    states: [positions, hidden] each, on the CPU.
    """

    extent_start: int
    positions: Seq[int]
    index: int
    states: Seq[torch.Tensor]

    def obey(self, runner: Runner) -> None:
        shadow = runner.shadow(self.extent_start, [0] * len(self.positions), self.positions)
        shadow.after(self.index, [state.to(runner.device) for state in self.states])


Order = Pass | Gather | Copy | ShadowStep


@dataclass(frozen=True, slots=True)
class Here:
    """The worker has started."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Its part is in memory; num_bytes: of its linears; free: see free_memory."""

    num_bytes: int
    free: int | None


@dataclass(frozen=True, slots=True)
class Ready:
    """It obeys orders from now on."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The last word; own: the cause is this rank's, and not that others are gone."""

    cause: str
    own: bool


Answer = Here | Loaded | Ready | Failed
