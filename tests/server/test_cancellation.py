"""Every way a request can be withdrawn, running and waiting: the work stops, the place is free, one answer goes out."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from loadtest.answers import Answer, read
from loadtest.figures import difference, read_metrics, total
from loadtest.grpc_stream import GrpcStream
from loadtest.soak import at_rest
from swift_backend.serving.server_process import RunningServer, running_server
from tests.server.processes import within

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

LASTING = {"max_tokens": 30_000, "ignore_eos": True, "speculation": "off"}
PLACES = 2


@pytest.fixture(scope="module")
def server(lasting_environment: dict[str, str]) -> Iterator[RunningServer]:
    """Two requests run, four more may wait."""
    limits = {"SWIFT_MAX_RUNNING": str(PLACES), "SWIFT_MAX_WAITING": "4"}
    with running_server(environment={**lasting_environment, **limits}) as running:
        yield running


@pytest.fixture
def users(server: RunningServer) -> Iterator[Users]:
    made = Users(server)
    yield made
    made.close()


class Users:
    """Clients on threads; `started` is how many chunks each has."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._pool = ThreadPoolExecutor(16)
        self.stream = GrpcStream(server.grpc_target)
        self.chunks: dict[str, int] = {}
        self.calls: dict[str, Any] = {}

    def close(self) -> None:
        for name in self.chunks:
            self.stop(name)
        self._pool.shutdown()
        self.stream.close()

    def ask(
        self, name: str, model: str = "swift_decoder", stream: GrpcStream | None = None, **parameters: Any
    ) -> Future[Answer]:
        def on_chunk(call: Any, answer: Answer) -> None:
            self.calls[name] = call
            self.chunks[name] += 1

        self.chunks[name] = 0
        inputs: dict[str, Any] = {"input_ids": [5, 6, 7]} if model == "swift_decoder" else {"text_input": "w5 w6 w7"}
        return self._pool.submit(
            read,
            stream or self.stream,
            model,
            {**inputs, "stream": True},
            {**LASTING, **parameters},
            on_chunk,
            request_id=name,
        )

    def stop(self, name: str) -> bool:
        """The `stop` control."""
        [answer] = read(self.stream, "swift_decoder", {"stop": True}, {}, request_id=name).chunks
        assert answer.final
        return bool(answer.outputs["cancelled"])

    def wait_for(self, running: int, waiting: int = 0) -> float:
        """Until the metrics say so; the seconds that it took."""

        def so_many() -> bool:
            metrics = read_metrics(self._server.metrics_url)
            counts = [total(metrics, f"swift_{name}_requests") for name in ("running", "waiting")]
            return counts == [running, waiting]

        return within(10, so_many)


def cancel_call(users: Users, name: str) -> None:
    users.calls[name].cancel()


def stop(users: Users, name: str) -> None:
    assert users.stop(name)


@pytest.mark.parametrize(
    ("model", "withdraw", "seen"),
    [
        ("swift_decoder", cancel_call, "CANCELLED"),
        ("swift_decoder", stop, "cancelled"),
        ("swift", stop, "cancelled"),
    ],
)
def test_a_running_request(
    server: RunningServer, users: Users, model: str, withdraw: Callable[[Users, str], None], seen: str
) -> None:
    before = read_metrics(server.metrics_url)
    other = users.ask("other")
    asked = users.ask("gone", model)
    within(10, lambda: users.chunks["gone"] > 3 and users.chunks["other"] > 3)
    withdraw(users, "gone")
    assert users.wait_for(running=1) < 1
    answer = asked.result(5)
    assert seen in (answer.error.partition(":")[0], answer.finish_reason)
    assert sum(chunk.final for chunk in answer.chunks) == (0 if answer.error else 1)
    chunks = users.chunks["other"]
    within(5, lambda: users.chunks["other"] > chunks + 10)
    assert users.stop("other") and other.result(5).finish_reason == "cancelled"
    added = difference(at_rest(server.metrics_url), before)
    assert total(added, "swift_requests_total", outcome="cancelled") == total(added, "swift_requests_total") == 2


@pytest.mark.parametrize("model", ["swift_decoder", "swift"])
def test_a_waiting_request_is_stopped_by_its_id(users: Users, model: str) -> None:
    """An ensemble request too, which Triton's own cancellation does not reach."""
    running = [users.ask(f"running-{number}") for number in range(PLACES)]
    users.wait_for(PLACES)
    waiting = [users.ask(f"waiting-{number}", model) for number in range(2)]
    users.wait_for(PLACES, 2)
    assert users.stop("waiting-1")
    answer = waiting[1].result(5)
    assert (answer.finish_reason, answer.token_ids, len(answer.chunks)) == ("cancelled", [], 1)
    users.wait_for(PLACES, 1)
    assert users.stop("running-0")
    within(5, lambda: users.chunks["waiting-0"] > 3)
    assert [users.stop(name) for name in ("waiting-0", "running-1", "waiting-1")] == [True, True, False]
    assert [one.result(5).finish_reason for one in (*running, waiting[0])] == ["cancelled"] * 3


@pytest.mark.parametrize(
    "parameters", [{"timeout_ms": 1500}, {"timeout": 1_500_000}, {"timeout": 1_500_000, "timeout_ms": 9000}]
)
@pytest.mark.parametrize("model", ["swift_decoder", "swift"])
def test_deadlines_hold_while_running_and_while_waiting(users: Users, model: str, parameters: dict[str, int]) -> None:
    """Our own, and Triton's in microseconds."""
    running = [users.ask(f"running-{number}", model, **parameters) for number in range(PLACES)]
    users.wait_for(PLACES)
    waiting = users.ask("waiting", model, **{**parameters, **dict.fromkeys(parameters, 100_000), "timeout_ms": 100})
    late = waiting.result(5)
    assert (late.finish_reason, late.token_ids) == ("timeout", [])
    assert 0.08 < late.ended - late.started < 0.5
    for answer in (one.result(5) for one in running):
        assert answer.finish_reason == "timeout" and len(answer.token_ids) > 5
        assert 1.45 < answer.ended - answer.started < 2.4


def test_a_full_queue_refuses_at_once(server: RunningServer, users: Users) -> None:
    before = read_metrics(server.metrics_url)
    asked = [users.ask(f"one-{number}") for number in range(PLACES)]
    users.wait_for(PLACES)
    asked += [users.ask(f"one-{number}") for number in range(PLACES, PLACES + 4)]
    users.wait_for(PLACES, 4)
    refused = users.ask("refused").result(2)
    assert "the waiting queue is full: 4 of 4 requests wait" in refused.error
    assert refused.ended - refused.started < 0.5
    for number in range(PLACES + 4):
        assert users.stop(f"one-{number}")
    assert {one.result(5).finish_reason for one in asked} == {"cancelled"}
    added = difference(at_rest(server.metrics_url), before)
    assert total(added, "swift_requests_total", outcome="unavailable") == 1


def test_a_request_that_can_never_fit_is_refused_with_the_numbers(server: RunningServer, users: Users) -> None:
    answer = read(users.stream, "swift_decoder", {"input_ids": [5] * 32_768}, {})
    assert "input_ids must hold at most 32767 tokens, got 32768" in answer.error


def test_a_channel_that_is_closed_frees_the_place(server: RunningServer, users: Users) -> None:
    own = GrpcStream(server.grpc_target)
    asked = users.ask("gone", stream=own)
    within(10, lambda: users.chunks["gone"] > 3)
    own.close()
    assert users.wait_for(running=0) < 1
    assert "CANCELLED" in asked.result(5).error


def test_an_http_client_that_leaves_frees_the_place(server: RunningServer, users: Users) -> None:
    body = json.dumps({"input_ids": [5, 6, 7], "stream": True, **LASTING})
    address = urlsplit(server.http_url)
    with socket.create_connection((address.hostname, address.port)) as client:
        head = (
            f"POST /v2/models/swift_decoder/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        client.sendall((head + body).encode())
        users.wait_for(running=1)
        assert b"data:" in client.recv(65536)
    assert users.wait_for(running=0) < 1


def test_an_unloaded_model_ends_its_streams_first(lasting_environment: dict[str, str]) -> None:
    """Triton lets them run to their end; afterwards no figure of the model is left standing, and it can come back."""
    arguments = ("--model-control-mode=explicit", "--load-model=swift")
    with running_server(environment=lasting_environment, arguments=arguments) as server:
        users = Users(server)
        asked = users.ask("short", max_tokens=400)
        within(10, lambda: users.chunks["short"] > 3)
        repository = f"{server.http_url}/v2/repository/models"
        assert httpx.post(f"{repository}/swift_decoder/unload", timeout=10, trust_env=False).status_code == 200
        assert "no available versions" in read(users.stream, "swift_decoder", {"input_ids": [5]}, {}).error
        answer = asked.result(30)
        assert (answer.finish_reason, len(answer.token_ids)) == ("length", 400)
        gauge = "swift_kv_tokens_capacity"
        within(20, lambda: total(read_metrics(server.metrics_url), gauge) == 0)
        assert httpx.post(f"{repository}/swift/load", timeout=90, trust_env=False).status_code == 200
        within(20, lambda: total(read_metrics(server.metrics_url), gauge) == 200_000)
        started = time.monotonic()
        again = users.ask("again", max_tokens=5).result(10)
        assert (again.finish_reason, len(again.token_ids)) == ("length", 5) and time.monotonic() - started < 10
        users.chunks.clear()
        users.close()
