"""A thousand mixed requests, and storms of cancellations: every answer right, nothing left, every figure adds up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from loadtest.answers import Answer, read
from loadtest.figures import difference, read_metrics, total
from loadtest.grpc_stream import GrpcStream
from loadtest.soak import Clients, Mix, at_rest, soak
from loadtest.soak_outcome import Soak, growth
from swift_backend.serving.server_process import RunningServer

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

LONG = {"max_tokens": 200, "ignore_eos": True, "speculation": "off"}


@pytest.fixture(scope="module")
def clients(tiny_server: RunningServer) -> Iterator[Clients]:
    made = Clients(
        tiny_server.grpc_target,
        lambda number: " ".join(f"w{3 + (number * 7 + i) % 60}" for i in range(20)),
        lambda number: [3 + (number * 5 + i) % 60 for i in range(24)],
        max_tokens=24,
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def thousand(tiny_server: RunningServer, clients: Clients) -> Soak:
    """The soak of the issue; one before it, so that all memory that is ever needed is there."""
    for requests in (300, 1000):
        came = soak(
            clients,
            tiny_server.metrics_url,
            requests=requests,
            users=40,
            mix=Mix(),
            seed=requests,
            server=tiny_server.pid,
        )
    return came


def test_every_answer_is_what_its_prompt_gets_alone(thousand: Soak) -> None:
    assert dict(thousand.troubles) == {}
    kinds = {result.kind for result in thousand.results}
    assert kinds == {"run", "stopped", "left", "late", "wrong"} and len(thousand.results) == 1000
    reasons = {result.answer.finish_reason for result in thousand.results}
    assert reasons >= {"length", "cancelled", "timeout"}


def test_the_metrics_add_up_to_what_the_clients_saw(thousand: Soak) -> None:
    assert thousand.mismatches == []
    assert total(thousand.added, "swift_generated_tokens_total") > 10_000
    assert total(thousand.added, "swift_accepted_draft_tokens_total", drafter="layer_skip") > 0
    assert total(thousand.added, "swift_reused_prompt_tokens_total") > 1000


def test_without_clients_that_leave_they_add_up_exactly(tiny_server: RunningServer, clients: Clients) -> None:
    mix = Mix(stopped=0.2, left=0.0, late=0.1, wrong=0.1)
    came = soak(clients, tiny_server.metrics_url, requests=300, users=40, mix=mix, seed=7)
    assert (dict(came.troubles), came.mismatches) == ({}, [])
    answered = [result for result in came.results if result.kind != "wrong" and result.answer.token_ids]
    for name in ("swift_time_to_first_token_seconds_count", "swift_request_seconds_count"):
        counts = {
            "swift_time_to_first_token_seconds_count": len(answered),
            "swift_request_seconds_count": 300 - _wrong(came),
        }
        assert total(came.added, name) == counts[name]
    rounds = total(came.added, "swift_accepted_per_round_sum")
    assert rounds == total(came.added, "swift_accepted_draft_tokens_total") > 0


def _wrong(came: Soak) -> int:
    return sum(result.kind == "wrong" for result in came.results)


def test_memory_is_flat(thousand: Soak) -> None:
    """server#6270, #7481; of the server and its processes. An arena of malloc's is worth 2 %."""
    assert len(thousand.memory) >= 40
    resident, shared = map(growth, thousand.memory_columns.values())
    assert resident[0] < 0.05 and resident[1] < 0.005
    assert shared == (0, 0)


class Storm:
    """Many requests that are all under way at once."""

    def __init__(self, server: RunningServer, names: list[str], model: str) -> None:
        self._stream = GrpcStream(server.grpc_target)
        self._started = threading.Semaphore(0)
        self._pool = ThreadPoolExecutor(len(names))
        self.futures = [self._pool.submit(self._run, name, model, number) for number, name in enumerate(names)]

    def _run(self, name: str, model: str, number: int) -> Answer:
        prompt = [3 + number % 60, 4, 5]
        inputs = (
            {"text_input": " ".join(f"w{token}" for token in prompt)} if model == "swift" else {"input_ids": prompt}
        )
        started = self._started.release
        return read(
            self._stream, model, {**inputs, "stream": True}, LONG, lambda call, answer: started(), request_id=name
        )

    def wait(self, count: int) -> None:
        """Until so many chunks have come."""
        for _ in range(count):
            assert self._started.acquire(timeout=30)

    def answers(self) -> list[Answer]:
        found = [future.result(60) for future in self.futures]
        self._pool.shutdown()
        self._stream.close()
        return found


@pytest.mark.parametrize("model", ["swift", "swift_decoder"])
def test_two_hundred_requests_stopped_at_once(tiny_server: RunningServer, model: str) -> None:
    """32 run and the others wait; ids used by several requests, and ids that nobody has, among them.

    The last ones are stopped first: the first ones may be done by then.
    """
    before = read_metrics(tiny_server.metrics_url)
    names = [f"storm-{number // 2}" for number in range(200)]
    storm = Storm(tiny_server, names, model)
    storm.wait(64)
    stream = GrpcStream(tiny_server.grpc_target)
    with ThreadPoolExecutor(50) as pool:
        asked = [*dict.fromkeys(reversed(names)), *(f"nobody-{number}" for number in range(20))]
        stops = list(pool.map(lambda name: read(stream, "swift_decoder", {"stop": True}, {}, request_id=name), asked))
    answers = storm.answers()
    cancelled = [stop.chunks[0].outputs["cancelled"] for stop in stops]
    assert all(stop.error == "" and len(stop.chunks) == 1 for stop in stops)
    assert cancelled[100:] == [False] * 20 and sum(cancelled) >= 30
    assert {answer.error for answer in answers} == {""}
    assert {answer.finish_reason for answer in answers} <= {"cancelled", "length"}
    assert sum(answer.finish_reason == "cancelled" for answer in answers) >= 60
    added = difference(at_rest(tiny_server.metrics_url), before)
    for reason in ("cancelled", "length"):
        seen = sum(answer.finish_reason == reason for answer in answers)
        assert total(added, "swift_requests_total", outcome=reason) == seen
    assert total(added, "swift_generated_tokens_total") == sum(len(answer.token_ids) for answer in answers)
    again = read(stream, model, _prompt(model), LONG, request_id="storm-1")
    stream.close()
    assert (again.finish_reason, len(again.token_ids)) == ("length", 200)


def test_two_hundred_clients_that_leave_at_once(tiny_server: RunningServer) -> None:
    """gRPC cancellation of streams of swift_decoder."""
    before = read_metrics(tiny_server.metrics_url)
    stream = GrpcStream(tiny_server.grpc_target)
    calls = [stream.call("swift_decoder", {"input_ids": [3 + n % 60], "stream": True}, LONG) for n in range(200)]
    next(calls[0])
    for call in calls:
        call.cancel()
    added = difference(at_rest(tiny_server.metrics_url), before)
    stream.close()
    outcomes = {name: total(added, "swift_requests_total", outcome=name) for name in ("cancelled", "length")}
    assert sum(outcomes.values()) == total(added, "swift_requests_total") <= 200
    assert outcomes["cancelled"] >= 150


def _prompt(model: str) -> dict[str, object]:
    return {"text_input": "w3 w4 w5", "stream": True} if model == "swift" else {"input_ids": [3, 4, 5], "stream": True}
