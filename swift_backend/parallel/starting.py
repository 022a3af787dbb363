"""How do the ranks come to be? Started, sent what to load, connected, and given room for the cache."""

from __future__ import annotations

import logging
import pickle
import tempfile
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from swift_backend.model.config import ModelConfig
from swift_backend.parallel.devices import free_memory, rank_devices
from swift_backend.parallel.group import Group
from swift_backend.parallel.loading import cache_sizes, linear_bytes, load_share
from swift_backend.parallel.orders import Answer, Assignment, Here, Loaded, Ready, Room
from swift_backend.parallel.processes import Worker, end, failure_of
from swift_backend.parallel.runner import MirroredCache, ParallelRunner
from swift_backend.parallel.share import Share, refuse_indivisible
from swift_backend.parallel.team import Team

# Slots of a cache for a model of this shape, with so many bytes free; None: on the CPU.
Capacity = Callable[[ModelConfig, int | None], int]
Kind = TypeVar("Kind", bound=Answer)
_log = logging.getLogger(__name__)


def start_ranks(first: Assignment, capacity: Capacity) -> ParallelRunner:
    """Start the other ranks, and load the model with them; raises RankFailure beside what loading raises.

    first: rank 0's, with any meeting place. ModelLoadError or ConfigError where there cannot be so many ranks.
    """
    refuse_indivisible(first.config, first.share.size)
    devices = rank_devices(first.device, first.share.size)
    folder = tempfile.TemporaryDirectory(prefix="swift-ranks-")
    workers: list[Worker] = []
    try:
        task, *others = _assignments(first, devices, Path(folder.name) / "meeting_place")
        for other in others:
            workers.append(Worker.start(other.share.rank))
            workers[-1].say(pickle.dumps(other))
        return _load(task, workers, capacity, folder.cleanup)
    except BaseException:
        end(workers)
        folder.cleanup()
        raise


def _assignments(first: Assignment, devices: Seq[torch.device], place: Path) -> list[Assignment]:
    shares = [Share(rank, len(devices)) for rank in range(len(devices))]
    return [
        replace(first, share=share, device=device, meeting_place=place)
        for share, device in zip(shares, devices, strict=True)
    ]


def _load(task: Assignment, workers: Seq[Worker], capacity: Capacity, cleanup: Callable[[], None]) -> ParallelRunner:
    _hear(workers, Here)
    group = Group(task.share, task.meeting_place, task.device)
    decoder = load_share(task, group)
    loaded = [Loaded(linear_bytes(decoder), free_memory(task.device)), *_hear(workers, Loaded)]
    _log.info("the layers' weights by rank, in MB: %s", ", ".join(f"{one.num_bytes / 1e6:.0f}" for one in loaded))
    least = min((one.free for one in loaded if one.free is not None), default=None)
    slots = capacity(task.config if least is None else decoder.config, least)
    for worker in workers:
        worker.say(pickle.dumps(Room(slots)))
    _hear(workers, Ready)
    if task.device.type == "cpu":  # NCCL looks at the meeting place now and then, gloo has no more use for it
        cleanup()
    team = Team(workers, group.abort, cleanup)
    cache = MirroredCache(team, cache_sizes(task, slots))
    return ParallelRunner(decoder, cache, team, [one.num_bytes for one in loaded])


def _hear(workers: Seq[Worker], kind: type[Kind]) -> list[Kind]:
    """The next answer of each; RankFailure when it is another."""
    answers: list[Any] = []
    for worker in workers:
        answers.append(worker.hear())
        if not isinstance(answers[-1], kind):
            raise failure_of([(worker.rank, answers[-1])])
    return answers
