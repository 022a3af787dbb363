"""A rank that fails ends the engine within seconds, by name and with its cause, and none is left over."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest
import torch

from swift_backend import SamplingParams
from swift_backend.batch import RowGroup
from swift_backend.config import EngineConfig
from swift_backend.engine import Engine
from swift_backend.engine_thread import EngineThread
from swift_backend.errors import RankFailure
from swift_backend.loading import load_model
from swift_backend.model.config import read_config
from swift_backend.model.linear import Kernels
from swift_backend.parallel import group, team
from swift_backend.parallel.orders import Assignment, Gather, Here
from swift_backend.parallel.processes import Worker
from swift_backend.parallel.runner import ParallelRunner
from swift_backend.parallel.share import Share
from swift_backend.sequence import Extent, Output, Request

SECONDS = 5.0
ENDLESS = SamplingParams(max_tokens=200, ignore_eos=True, speculation="off")
ROOT = Path(__file__).resolve().parents[2]


def config(directory: Path) -> EngineConfig:
    return EngineConfig(str(directory), "float32", kv_cache_tokens=256, tensor_parallel=2, device="cpu")


def children() -> list[psutil.Process]:
    """Of this process, zombies included."""
    return psutil.Process().children()


@pytest.fixture(autouse=True)
def before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[psutil.Process]]:
    """The processes that were there before the ranks; in the end there are no others, and no files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others, shared = children(), set(os.listdir("/dev/shm"))
    yield others
    assert children() == others
    assert list(tmp_path.glob("swift-ranks-*")) == []
    assert [name for name in set(os.listdir("/dev/shm")) - shared if name.startswith(("torch_", "nccl-"))] == []


@pytest.fixture
def worker(before: list[psutil.Process], served: Served) -> psutil.Process:
    """The process of rank 1."""
    [process] = [one for one in children() if one not in before]
    return process


class Served:
    """An engine on its thread, and what became of it."""

    def __init__(self, directory: Path) -> None:
        self.ended, self.failure = Event(), None
        self.thread = EngineThread(config(directory), self._on_end)
        self.engine = self.thread.start()
        self.news: list[Output] = []
        self.first, self.last = Event(), Event()

    def _on_end(self, engine: Engine, failure: Any) -> None:
        self.failure = failure
        self.ended.set()

    def submit(self) -> None:
        self.engine.submit(Request("a", [5, 6, 7], ENDLESS, self._on_output))

    def _on_output(self, output: Output) -> None:
        self.news.append(output)
        self.first.set()
        if output.finished:
            self.last.set()

    def assert_failed(self, message: str) -> None:
        assert self.ended.wait(SECONDS) and self.thread.join(SECONDS) and not self.thread.alive
        assert isinstance(self.failure, RankFailure) and str(self.failure) == message


@pytest.fixture
def served(before: list[psutil.Process], tiny_model: Callable[[str], Path]) -> Iterator[Served]:
    one = Served(tiny_model("llama"))
    yield one
    one.engine.close()
    assert one.thread.join(SECONDS)


KILLED = "rank 1 of tensor_parallel has failed: it was ended by SIGKILL"


def test_one_that_is_killed_while_nobody_asks_ends_an_idle_engine(served: Served, worker: psutil.Process) -> None:
    time.sleep(0.2)
    worker.kill()
    served.assert_failed(KILLED)


def test_one_that_is_killed_while_all_wait_for_it_ends_the_open_requests(
    served: Served, worker: psutil.Process
) -> None:
    """First it is held, so that rank 0 waits for its part of a sum for certain."""
    served.submit()
    assert served.first.wait(SECONDS)
    worker.suspend()
    time.sleep(0.3)
    count = len(served.news)
    time.sleep(0.3)
    assert len(served.news) == count and not served.last.is_set()
    worker.kill()
    assert served.last.wait(SECONDS)
    assert isinstance(served.news[-1].error, RankFailure) and str(served.news[-1].error) == KILLED
    served.assert_failed(KILLED)


def test_an_engine_that_is_closed_takes_its_ranks_along(served: Served, worker: psutil.Process) -> None:
    served.engine.close()
    assert served.thread.join(SECONDS)
    assert served.failure is None and not worker.is_running()


@pytest.fixture
def runner(before: list[psutil.Process], tiny_model: Callable[[str], Path]) -> Iterator[ParallelRunner]:
    runner = load_model(config(tiny_model("llama"))).runner
    assert isinstance(runner, ParallelRunner)
    yield runner
    runner.close()


def test_one_that_breaks_says_why(runner: ParallelRunner) -> None:
    runner._team.say(Gather(Extent(0, 16), [20]))
    started = time.monotonic()
    with pytest.raises(RankFailure) as caught:
        while time.monotonic() - started < SECONDS:
            runner.forward([RowGroup([5], 0, 0, 1)])
    assert str(caught.value) == "rank 1 of tensor_parallel has failed: AssertionError: not tentative slots"
    with pytest.raises(RankFailure, match="not tentative slots"):
        runner.cache.copy(Extent(0, 16), Extent(16, 16), 0)


def test_rank_0_that_breaks_in_a_pass_stops_the_others(before: list[psutil.Process], runner: ParallelRunner) -> None:
    """They wait for a sum that never comes; the next pass would be added to the rest of this one."""

    def observe(sublayer: int, x: torch.Tensor, y: torch.Tensor) -> None:
        raise ValueError("too much")

    with pytest.raises(RankFailure, match="rank 0 of tensor_parallel has failed: ValueError: too much"):
        runner.forward([RowGroup([5], 0, 0, 1)], observe=observe)
    assert children() == before
    with pytest.raises(RankFailure, match="have been stopped"):
        runner.forward([RowGroup([5], 0, 0, 1)])


@pytest.mark.slow
def test_one_that_hangs_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, before: list[psutil.Process], tiny_model: Callable[[str], Path]
) -> None:
    monkeypatch.setattr(group, "PATIENCE", timedelta(seconds=4))
    monkeypatch.setattr(team, "EXIT_SECONDS", 0.2)
    runner = load_model(config(tiny_model("llama"))).runner
    [worker] = [one for one in children() if one not in before]
    worker.suspend()
    with pytest.raises(RankFailure, match="the ranks have lost each other: .*Timed out"):
        runner.forward([RowGroup([5], 0, 0, 1)])
    assert not worker.is_running()


def test_ranks_end_when_rank_0_is_killed(tiny_model: Callable[[str], Path]) -> None:
    """Whether they wait for an order or, as here, for a sum."""
    code = f"""
        import os, psutil, signal
        from swift_backend.batch import RowGroup
        from swift_backend.config import EngineConfig
        from swift_backend.loading import load_model
        model = load_model(EngineConfig({str(tiny_model("llama"))!r}, "float32", kv_cache_tokens=64, tensor_parallel=2))
        print(*[one.pid for one in psutil.Process().children()], flush=True)
        def observe(sublayer, x, y):
            os.kill(os.getpid(), signal.SIGKILL)
        model.runner.forward([RowGroup([5], 0, 0, 1)], observe=observe)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    [worker] = map(int, done.stdout.split())
    deadline = time.monotonic() + SECONDS
    while psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.05)


def test_ranks_that_are_still_to_meet_end_with_rank_0(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Which would be a wait of minutes."""
    directory = tiny_model("llama")
    config, cpu = read_config(directory), torch.device("cpu")
    task = Assignment(Share(1, 2), directory, config, "float32", cpu, 1, Kernels(), tmp_path / "place")
    worker = Worker.start(1)
    worker.say(pickle.dumps(task))
    assert worker.hear() == Here()
    worker.line.close()
    assert worker.process.wait(SECONDS) == 0
