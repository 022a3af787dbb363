"""When a pool is written, and what two processes that share its file know in the end."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from swift_backend import SamplingParams, SwiftLLM
from swift_backend.pool_keeper import BUSY_SECONDS, IDLE_SECONDS, PoolKeeper
from swift_backend.speculation.pool import Pool, load_pool

LAYERS = 6
A, B, C = 0b1100, 0b110000, 0b11000000
PROFILE = torch.zeros(3 * LAYERS)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def masks(path: Path) -> list[int]:
    return sorted(arm.skip_mask for arm in load_pool(path, LAYERS))


@pytest.mark.parametrize(("idle", "seconds"), [(True, IDLE_SECONDS), (False, BUSY_SECONDS)])
def test_it_is_written_when_it_is_time(tmp_path: Path, clock: Clock, idle: bool, seconds: float) -> None:
    path, pool = tmp_path / "pool.json", Pool(LAYERS)
    keeper = PoolKeeper(path, pool, clock)
    pool.add(A, "search")
    clock.now += seconds - 1
    keeper.tick(idle)
    assert not path.exists()
    clock.now += 1
    keeper.tick(idle)
    assert masks(path) == [A]
    pool.add(B, "search")
    clock.now += seconds - 1
    keeper.tick(idle)
    assert masks(path) == [A]
    clock.now += 1
    keeper.tick(idle)
    assert masks(path) == [A, B]


def test_nothing_new_is_not_written(tmp_path: Path, clock: Clock) -> None:
    path, pool = tmp_path / "pool.json", Pool(LAYERS)
    pool.add(A, "search")
    keeper = PoolKeeper(path, pool, clock)
    clock.now += 10 * BUSY_SECONDS
    keeper.tick(True)
    keeper.save()
    assert not path.exists()
    pool.note(A, first=True, confidence=0.9, accepted=True)
    keeper.save()
    written = path.stat().st_mtime_ns
    clock.now += 10 * BUSY_SECONDS
    keeper.tick(True)
    assert path.stat().st_mtime_ns == written


@pytest.mark.parametrize(
    "learn",
    [
        lambda pool: pool.add(B, "search"),
        lambda pool: pool.note(A, first=False, confidence=0.9, accepted=False),
        lambda pool: pool.remember(PROFILE, A, 10, 8),
    ],
)
def test_all_that_is_learnt_is_new(learn: Callable[[Pool], object]) -> None:
    pool = Pool(LAYERS)
    pool.add(A, "search")
    before = pool.changes
    pool.add(A, "search")
    pool.note(C, first=True, confidence=0.9, accepted=True)
    assert pool.changes == before, "it was there, or is of nobody"
    learn(pool)
    assert pool.changes > before


def test_two_processes_know_what_either_found(tmp_path: Path, clock: Clock) -> None:
    """Whoever writes last does not undo the other's work; of a set that both know, each keeps its own evidence."""
    path = tmp_path / "pool.json"
    pools = [Pool(LAYERS), Pool(LAYERS)]
    keepers = [PoolKeeper(path, pool, clock) for pool in pools]
    for pool, mask, right in zip(pools, (A, B), (True, False), strict=True):
        for one in (mask, C):
            pool.add(one, "search")
            pool.note(one, first=True, confidence=0.9, accepted=right)
    for keeper in keepers:
        keeper.save()
    assert masks(path) == [A, B, C]
    ours, theirs = (pool.arm(C) for pool in pools)
    assert ours is not None and theirs is not None and ours.alpha > theirs.alpha
    taken_over, own = pools[1].arm(A), pools[0].arm(A)
    assert taken_over is not None and own is not None
    assert (taken_over.origin, taken_over.alpha) == ("pool", own.alpha)


def test_a_program_leaves_what_it_learnt(tiny_model: Callable[[str], Path]) -> None:
    """Without a server, and without being asked to."""
    llm = SwiftLLM(tiny_model("llama"), "float32")
    prompt = list(range(3, 30))
    llm.generate([prompt], SamplingParams(max_tokens=12, speculation="skip", confidence_threshold=0.0))
    learnt = [arm.skip_mask for arm in llm.engine.pool_keeper._pool]
    assert learnt
    del llm
    gc.collect()
    again = SwiftLLM(tiny_model("llama"), "float32")
    assert [arm.skip_mask for arm in again.engine.pool_keeper._pool] == learnt
