"""swift_decoder with several instances, withdrawn requests, refusals, a failing engine and a stopping server."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from swift_backend import engine_thread
from swift_backend.config import EngineConfig
from swift_backend.errors import EngineFailure, InvalidRequest, Unavailable
from swift_backend.metric_families import OUTCOMES
from swift_backend.metrics import RequestReport, StepReport
from swift_backend.request_stats import RequestStats
from swift_backend.sequence import Request
from swift_backend.serving import decoder_model
from swift_backend.serving.decoder_model import DRAIN_SECONDS, TritonPythonModel
from tests.serving.fake_engine import FakeEngine, arguments, ended, engine_of, eventually

Make = Callable[..., TritonPythonModel]


class FakeGuardian:
    """Remembers what it is told."""

    def __init__(self, name: str, on_stopping: Callable[[float], None]) -> None:
        self.name, self.on_stopping = name, on_stopping
        self.told: list[str] = []

    def stop_server(self) -> None:
        self.told.append("stop")

    def goodbye(self) -> None:
        self.told.append("bye")


@pytest.fixture
def guardians(monkeypatch: pytest.MonkeyPatch) -> list[FakeGuardian]:
    """Those that were made; this process is no stub, and would get none."""
    made: list[FakeGuardian] = []

    def guard(name: str, on_stopping: Callable[[float], None]) -> FakeGuardian:
        made.append(FakeGuardian(name, on_stopping))
        return made[-1]

    monkeypatch.setattr(decoder_model, "guard_this_stub", guard)
    return made


@pytest.fixture
def make(triton: Any, guardians: list[FakeGuardian], monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Loads instances, and finalizes those that are left."""
    monkeypatch.setattr(engine_thread, "Engine", FakeEngine)
    for name in EngineConfig.__dataclass_fields__:
        monkeypatch.delenv(f"SWIFT_{name.upper()}", raising=False)
    made: list[TritonPythonModel] = []

    def load(**options: Any) -> TritonPythonModel:
        model = TritonPythonModel()
        model.initialize(arguments(**options))
        made.append(model)
        return model

    yield load
    for model in made:
        if model._reporter._thread.is_alive():
            model.finalize()


@pytest.fixture
def pair(make: Make) -> tuple[TritonPythonModel, TritonPythonModel]:
    """Two instances of a model that no other test run knows."""
    name = f"test-{uuid.uuid4()}"
    return make(name=name, count=2), make(name=name, count=2)


def test_an_instance_stops_the_requests_of_another(
    triton: Any, pair: tuple[TritonPythonModel, TritonPythonModel]
) -> None:
    """Triton hands the `stop` to whichever instance is free."""
    for asked, running in (pair, pair[::-1]):
        job, stop = triton.request("job", input_ids=[1]), triton.request("job", stop=True)
        running.execute([job])
        asked.execute([stop])
        assert ended(stop) == [{"cancelled": [True]}]
        assert ended(job)[0]["finish_reason"] == "cancelled"
        again = triton.request("job", stop=True)
        asked.execute([again])
        assert ended(again) == [{"cancelled": [False]}]


def test_an_instance_stops_its_own_request_without_asking_others(
    triton: Any, pair: tuple[TritonPythonModel, TritonPythonModel]
) -> None:
    first, second = pair
    jobs = [triton.request("job", input_ids=[1]) for _ in pair]
    first.execute(jobs[:1])
    second.execute(jobs[1:])
    stop = triton.request("job", stop=True)
    first.execute([stop])
    assert (ended(stop), ended(jobs[0])[0]["finish_reason"]) == ([{"cancelled": [True]}], "cancelled")
    assert engine_of(second).cancelled == []


def test_a_stop_without_an_id_reaches_nobody(triton: Any, pair: tuple[TritonPythonModel, TritonPythonModel]) -> None:
    first, second = pair
    second.execute([triton.request("", input_ids=[1])])
    stop = triton.request("", stop=True)
    first.execute([stop])
    assert (ended(stop), engine_of(second).cancelled) == ([{"cancelled": [False]}], [])


def test_instances_of_other_servers_are_strangers(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers on the host's network share its sockets, and in each the server may be process 1."""
    names: list[str] = []
    monkeypatch.setattr(decoder_model, "Siblings", lambda name, stop: names.append(name))
    make(name="m", count=2)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    make(name="m", count=2)
    namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    monkeypatch.undo()
    assert names == [f"{namespace}-{os.getppid()}-m-1", f"{namespace}-1-m-1"]


def test_an_only_instance_has_nobody_to_ask(make: Make) -> None:
    assert make()._siblings is None


def test_a_stop_before_the_engine_knows_the_request_still_counts(
    triton: Any, pair: tuple[TritonPythonModel, TritonPythonModel]
) -> None:
    """It comes through the other instance, while this one is about to submit."""
    first, second = pair
    engine, submit, stop = engine_of(first), engine_of(first).submit, triton.request("job", stop=True)

    def late(request: Request) -> None:
        second.execute([stop])
        assert engine.cancelled == [request.request_id]
        submit(request)

    engine.submit = late  # type: ignore[method-assign]
    job = triton.request("job", input_ids=[1])
    first.execute([job])
    assert ended(stop) == [{"cancelled": [True]}]
    assert ended(job)[0]["finish_reason"] == "cancelled"


def test_a_client_that_leaves_before_the_engine_knows_its_request(triton: Any, make: Make) -> None:
    model = make()
    engine, submit = engine_of(model), engine_of(model).submit
    job = triton.request("job", input_ids=[1], stream=True)
    job.sender.cancelled = True

    def late(request: Request) -> None:
        eventually(lambda: engine.cancelled == [request.request_id])
        submit(request)

    engine.submit = late  # type: ignore[method-assign]
    model.execute([job])
    assert ended(job) == [{"error": "the client cancelled the request", "code": "CANCELLED"}]


def test_a_request_that_nobody_withdrew_is_not_cancelled(triton: Any, make: Make) -> None:
    model = make()
    job = triton.request("job", input_ids=[1])
    model.execute([job])
    assert (engine_of(model).cancelled, len(engine_of(model).requests)) == ([], 1)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Unavailable("the waiting queue is full"), "unavailable"),
        (InvalidRequest("input_ids", "input_ids too long"), "invalid"),
        (EngineFailure("it broke"), "error"),
        (ValueError("a bug"), "error"),
    ],
)
def test_a_request_that_the_engine_refuses_is_counted(triton: Any, make: Make, error: Exception, outcome: str) -> None:
    model = make()
    engine_of(model).refusal = error
    request = triton.request("job", input_ids=[1])
    model.execute([request])
    ended(request)
    eventually(lambda: triton.count("swift_requests_total", outcome=outcome) == 1)
    assert sum(triton.count("swift_requests_total", outcome=one) for one in OUTCOMES) == 1


def test_wrong_requests_are_counted_and_logged_at_the_verbose_level_only(triton: Any, make: Make) -> None:
    model = make()
    triton.log.clear()
    wrong = [triton.request("a", input_ids=[1], sampling_parameters="{"), triton.request(b"\xff", input_ids=[1])]
    model.execute(wrong)
    assert [ended(request)[0]["code"] for request in wrong] == ["INVALID_ARG"] * 2
    eventually(lambda: len(triton.log) == 2)
    assert [level for level, _ in triton.log] == ["verbose"] * 2
    assert [json.loads(line) for _, line in triton.log] == [
        {"request": "'a'", "outcome": "invalid"},
        {"request": "#2", "outcome": "invalid"},
    ]
    assert triton.count("swift_requests_total", outcome="invalid") == 2


def test_requests_that_end_well_leave_a_verbose_line_and_no_other(triton: Any, make: Make) -> None:
    model = make()
    triton.log.clear()
    job, stop = triton.request("job", input_ids=[1]), triton.request("x", stop=True)
    model.execute([job, stop])
    [(request_id, submitted)] = engine_of(model).requests.items()
    engine_of(model).end(request_id, "stop")
    ended(job)
    report = RequestReport(submitted.label, "stop", 1, 0.5, RequestStats())
    engine_of(model).on_step(StepReport(ended=[report], prompt_tokens=1, running=0))
    eventually(lambda: triton.log)
    [(level, line)] = triton.log
    assert (level, json.loads(line)["request"], json.loads(line)["outcome"]) == ("verbose", "'job'", "stop")
    assert triton.shown() == {
        ("swift_requests_total", (("outcome", "stop"),)): 1,
        ("swift_prompt_tokens_total", ()): 1,
    }


def test_metrics_may_be_switched_off(triton: Any, make: Make) -> None:
    make(metrics="false")
    with pytest.raises(KeyError):
        triton.count("swift_running_requests")
    make(metrics="true")
    assert triton.count("swift_running_requests") == 0


def test_finalize_lets_open_requests_go_on_for_a_while_and_takes_the_gauges_back(triton: Any, make: Make) -> None:
    model = make()
    engine_of(model).on_step(StepReport(running=1, kv_tokens_capacity=512))
    eventually(lambda: triton.count("swift_kv_tokens_capacity") == 512)
    model.finalize()
    assert engine_of(model).drains[0] == DRAIN_SECONDS == 5.0
    assert triton.shown() == {}
    threads = (model._reporter._thread, model._engine_thread._thread)
    assert [thread.is_alive() for thread in threads] == [False, False]


@pytest.mark.parametrize(("limit", "drain"), [(30.0, 16.0), (10.0, 4.0), (5.0, 1.0), (2.0, 0.0), (0.0, 0.0)])
def test_a_stopping_server_leaves_the_requests_a_part_of_its_time(
    make: Make, guardians: list[FakeGuardian], limit: float, drain: float
) -> None:
    """Triton kills nobody, but hangs, where requests outlast its limit."""
    model = make()
    guardians[0].on_stopping(limit)
    assert engine_of(model).drains[0] == pytest.approx(drain)
    assert guardians[0].told == []


def test_whoever_comes_while_the_server_stops_is_sent_away(
    triton: Any, make: Make, guardians: list[FakeGuardian]
) -> None:
    model = make()
    guardians[0].on_stopping(30.0)
    late = triton.request(input_ids=[1])
    model.execute([late])
    assert ended(late) == [{"error": "the server is shutting down", "code": "UNAVAILABLE"}]


def test_an_engine_that_fails_has_the_server_stopped_after_the_last_answer(
    triton: Any, make: Make, guardians: list[FakeGuardian]
) -> None:
    model = make()
    job = triton.request("job", input_ids=[1])
    model.execute([job])
    engine_of(model).crash = MemoryError("no memory")
    engine_of(model).wake.set()
    assert ended(job)[0]["code"] == "INTERNAL"
    eventually(lambda: guardians[0].told)
    model.finalize()
    assert (guardians[0].name, guardians[0].told) == ("swift_decoder", ["stop", "bye"])


def test_an_unloaded_model_says_goodbye_and_stops_nothing(make: Make, guardians: list[FakeGuardian]) -> None:
    make().finalize()
    assert guardians[0].told == ["bye"]


def test_a_server_that_others_look_after_is_not_guarded(triton: Any, make: Make, guardians: list[FakeGuardian]) -> None:
    model = make(exit_on_failure="false")
    engine_of(model).crash = RuntimeError("a bug")
    engine_of(model).wake.set()
    eventually(lambda: not model.is_ready())
    model.finalize()
    assert guardians == []


def test_a_model_that_cannot_be_loaded_is_not_guarded(triton: Any, make: Make, guardians: list[FakeGuardian]) -> None:
    with pytest.raises(triton.Exception, match="does not exist"):
        make(model="missing")
    assert guardians == []


def test_each_instance_gets_its_part_of_the_machine(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swift_backend.serving.instance.available_cores", lambda: 6)
    assert engine_of(make()).config.threads is None
    model = make(name=f"test-{uuid.uuid4()}", count=3)
    assert engine_of(model).config.threads == 2
