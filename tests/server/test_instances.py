"""Two instances of the decoder share the load, the cores, the metrics, and the `stop` control."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from loadtest.answers import Answer, read
from loadtest.figures import read_metrics, total
from loadtest.grpc_stream import GrpcStream
from loadtest.soak import at_rest
from swift_backend.serving.server_command import PROJECT_ROOT
from swift_backend.serving.server_process import RunningServer, running_server
from tests.server.processes import stubs, within

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

LASTING = {"max_tokens": 30_000, "ignore_eos": True, "speculation": "off"}


@pytest.fixture(scope="module")
def server(lasting_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("two") / "models"
    shutil.copytree(PROJECT_ROOT / "model_repository", repository)
    config = repository / "swift_decoder" / "config.pbtxt"
    text, count = re.subn(r"(instance_group .*count:) 1", r"\1 2", config.read_text())
    assert count == 1
    config.write_text(text)
    environment = {**lasting_environment, "SWIFT_KV_CACHE_TOKENS": "70000"}
    with running_server(repository, environment=environment) as running:
        yield running


@pytest.fixture
def stream(server: RunningServer) -> Iterator[GrpcStream]:
    made = GrpcStream(server.grpc_target)
    yield made
    made.close()


def test_the_load_is_shared(server: RunningServer, stream: GrpcStream) -> None:
    """Sixteen long streams: Triton deals them out in turn, and both processes work."""
    before = {stub.pid: cpu_seconds(stub) for stub in stubs(server.pid, "swift_decoder")}
    parameters = {**LASTING, "max_tokens": 400}
    with ThreadPoolExecutor(16) as pool:
        asked = pool.map(lambda n: read(stream, "swift_decoder", {"input_ids": [3 + n]}, parameters), range(16))
        answers: list[Answer] = list(asked)
    assert [len(answer.token_ids) for answer in answers] == [400] * 16
    worked = [cpu_seconds(stub) - before[stub.pid] for stub in stubs(server.pid, "swift_decoder")]
    assert len(worked) == 2 and min(worked) > 0.3 * max(worked)


def test_the_cores_are_shared(server: RunningServer) -> None:
    assert "KIND_MODEL" in (PROJECT_ROOT / "model_repository" / "swift_decoder" / "config.pbtxt").read_text()
    cores = len(os.sched_getaffinity(0))
    for stub in stubs(server.pid, "swift_decoder"):
        busy = [thread for thread in stub.threads() if thread.user_time > 0.5]
        assert 1 <= len(busy) <= max(1, cores // 2) + 2  # the engine's team, and the loading


def test_stop_finds_the_instance_that_has_the_request(server: RunningServer, stream: GrpcStream) -> None:
    """Triton deals requests out in turn, so stops of one running request ask either instance."""
    with ThreadPoolExecutor(4) as pool:
        for number in range(4):
            name = f"lasting-{number}"
            asked = pool.submit(
                read, stream, "swift_decoder", {"input_ids": [5], "stream": True}, LASTING, request_id=name
            )
            within(10, lambda: total(read_metrics(server.metrics_url), "swift_running_requests") == 1)
            unknown = read(stream, "swift_decoder", {"stop": True}, {}, request_id="nobody")
            stopped = read(stream, "swift_decoder", {"stop": True}, {}, request_id=name)
            assert [one.chunks[0].outputs["cancelled"] for one in (unknown, stopped)] == [False, True]
            assert asked.result(10).finish_reason == "cancelled"


def test_their_metrics_add_up(server: RunningServer, stream: GrpcStream) -> None:
    before = read_metrics(server.metrics_url)
    assert total(before, "swift_kv_tokens_capacity") == 2 * 70_000
    for number in range(6):
        assert read(stream, "swift_decoder", {"input_ids": [5 + number]}, {"max_tokens": 7, "ignore_eos": True}).chunks
    started = time.monotonic()
    after = at_rest(server.metrics_url)
    assert time.monotonic() - started < 5
    added = total(after, "swift_generated_tokens_total") - total(before, "swift_generated_tokens_total")
    assert added == 6 * 7


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
