"""A model that two processes share, behind a real tritonserver: it answers, and no process outlives another."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil
import pytest

from swift_backend.serving.server_process import RunningServer, running_server
from tests.server.clients import LASTING, UP_SECONDS, Client, ready
from tests.server.processes import is_gone, stubs, within

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture
def server(lasting_environment: dict[str, str]) -> Iterator[RunningServer]:
    ranks = {"SWIFT_TENSOR_PARALLEL": "2", "OMP_NUM_THREADS": "1"}
    with running_server(environment=lasting_environment | ranks, exit_timeout=20.0) as running:
        time.sleep(UP_SECONDS)
        yield running


def worker_of(server: RunningServer) -> psutil.Process:
    [stub] = stubs(server.pid, "swift_decoder")
    [worker] = [child for child in stub.children() if "swift_backend.parallel.worker" in child.cmdline()]
    return worker


def test_a_killed_rank_ends_its_clients_by_name_and_the_readiness(server: RunningServer) -> None:
    client = Client(server, "swift_decoder")
    within(20, lambda: len(client.chunks) > 5)
    family = psutil.Process(server.pid).children(recursive=True)
    worker_of(server).kill()
    within(5, lambda: not ready(server))
    within(5, lambda: client.ended)
    assert "rank 1 of tensor_parallel has failed: it was ended by SIGKILL" in str(client.error)
    within(10, lambda: all(map(is_gone, family)))


def test_a_killed_stub_takes_its_ranks_along(server: RunningServer) -> None:
    short = Client(server, "swift", {**LASTING, "max_tokens": 20})
    within(20, lambda: short.ended)
    assert short.error is None and short.reason == "length"
    worker = worker_of(server)
    stubs(server.pid, "swift_decoder")[0].kill()
    within(5, lambda: is_gone(worker))
