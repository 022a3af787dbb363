"""The life cycle of swift_decoder around a fake engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import pytest

from swift_backend import engine_thread
from swift_backend.config import EngineConfig
from swift_backend.errors import InvalidRequest, Unavailable
from swift_backend.params import SamplingParams
from swift_backend.serving import decoder_model
from swift_backend.serving.decoder_model import TritonPythonModel
from tests.serving.fake_engine import FakeEngine, arguments, ended, engine_of, eventually


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_thread, "Engine", FakeEngine)
    for name in EngineConfig.__dataclass_fields__:
        monkeypatch.delenv(f"SWIFT_{name.upper()}", raising=False)


@pytest.fixture
def model(triton: Any) -> Iterator[TritonPythonModel]:
    loaded = TritonPythonModel()
    loaded.initialize(arguments())
    yield loaded
    loaded.finalize()


def test_a_request_reaches_the_engine_and_its_answer_the_client(triton: Any, model: TritonPythonModel) -> None:
    request = triton.request(input_ids=[3, 4], stream=True, sampling_parameters='{"max_tokens": 2}')
    model.execute([request])
    [(request_id, submitted)] = engine_of(model).requests.items()
    assert (submitted.prompt_ids, submitted.params) == ([3, 4], SamplingParams(max_tokens=2))
    engine_of(model).emit(request_id, "a", 1)
    eventually(lambda: request.sender.responses)
    engine_of(model).end(request_id, "length", "b")
    assert [table["text_output"] for table in ended(request)] == ["a", "b"]


def test_ids_inside_are_unique_whatever_clients_call_their_requests(triton: Any, model: TritonPythonModel) -> None:
    requests = [triton.request(request_id, input_ids=[1]) for request_id in ("", "", "same", "same")]
    model.execute(requests)
    ids = list(engine_of(model).requests)
    assert len(set(ids)) == 4
    for position, request_id in enumerate(ids):
        engine_of(model).end(request_id, "stop", str(position))
    assert [ended(request)[0]["text_output"] for request in requests] == ["0", "1", "2", "3"]


def test_the_prompt_is_decoded_from_its_ids_when_asked_for(triton: Any, model: TritonPythonModel) -> None:
    sampling = '{"skip_special_tokens": false}'
    request = triton.request(input_ids=[3, 4], exclude_input_in_output=False, sampling_parameters=sampling)
    plain = triton.request(input_ids=[3, 4], exclude_input_in_output=True)
    model.execute([request, plain])
    for request_id in list(engine_of(model).requests):
        engine_of(model).end(request_id, "stop", "!")
    assert [ended(r)[0]["text_output"] for r in (request, plain)] == ["<3+4 False>!", "!"]


def test_logprobs_come_with_the_tokens_own_texts_for_those_who_ask(triton: Any, model: TritonPythonModel) -> None:
    asking = triton.request(input_ids=[3], return_logprobs=True)
    plain = triton.request(input_ids=[3])
    model.execute([asking, plain])
    for request_id in list(engine_of(model).requests):
        engine_of(model).emit(request_id, "a", 7)
        engine_of(model).emit(request_id, "b", 8)
        engine_of(model).end(request_id, "stop")
    entries = json.loads(ended(asking)[0]["logprobs"])
    assert [(entry["token_id"], entry["token"], entry["logprob"]) for entry in entries] == [
        (7, "<7 False>", -0.5),
        (8, "<8 False>", -0.5),
    ]
    assert ended(plain)[0]["logprobs"] == "" and ended(plain)[0]["cumulative_logprob"] == [0.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"request_id": b"\xff"}, "id is not valid UTF-8: invalid start byte at byte 0"),
        ({"parameters": b'{"stop": "\xff"}'}, "parameters is not valid UTF-8: invalid start byte at byte 10"),
    ],
)
def test_bytes_that_are_no_text_end_their_own_request_only(
    triton: Any, model: TritonPythonModel, given: dict[str, Any], said: str
) -> None:
    """Triton passes any bytes on; pb_utils raises when they are asked for."""
    wrong, right = triton.request(input_ids=[1], **given), triton.request("fine", input_ids=[1])
    model.execute([wrong, right])
    assert ended(wrong) == [{"error": said, "code": "INVALID_ARG"}]
    [request_id] = engine_of(model).requests
    engine_of(model).end(request_id, "stop", "fine")
    assert ended(right)[0]["text_output"] == "fine"


def test_a_wrong_request_does_not_harm_its_neighbours(triton: Any, model: TritonPythonModel) -> None:
    wrong = triton.request(input_ids=[1], sampling_parameters='{"top_p": 2}')
    right = triton.request(input_ids=[1])
    model.execute([wrong, right])
    assert ended(wrong) == [{"error": "top_p must be in (0, 1], got 2", "code": "INVALID_ARG"}]
    [request_id] = engine_of(model).requests
    engine_of(model).end(request_id, "stop", "fine")
    assert ended(right)[0]["text_output"] == "fine"
    assert triton.errors() == []


@pytest.mark.parametrize(
    ("refusal", "answer"),
    [
        (Unavailable("the waiting queue is full"), {"error": "the waiting queue is full", "code": "UNAVAILABLE"}),
        (InvalidRequest("input_ids", "input_ids too long"), {"error": "input_ids too long", "code": "INVALID_ARG"}),
        (ValueError("x"), {"error": "request 'me': internal error (ValueError)", "code": "INTERNAL"}),
    ],
)
def test_a_refusal_of_the_engine_reaches_the_client(
    triton: Any, model: TritonPythonModel, refusal: Exception, answer: dict[str, str]
) -> None:
    engine_of(model).refusal = refusal
    request = triton.request("me", input_ids=[1])
    model.execute([request])
    assert ended(request) == [answer]
    assert [line.splitlines()[0] for line in triton.errors()] == (
        ["request 'me': Traceback (most recent call last):"] if answer["code"] == "INTERNAL" else []
    )


def test_stop_cancels_by_the_clients_id(triton: Any, model: TritonPythonModel) -> None:
    running, stop = triton.request("job", input_ids=[1]), triton.request("job", stop=True)
    model.execute([running, stop])
    assert ended(stop) == [{"cancelled": [True]}]
    assert ended(running)[0]["finish_reason"] == "cancelled"
    again = triton.request("job", stop=True)
    model.execute([again])
    assert ended(again) == [{"cancelled": [False]}]


def test_stop_of_an_unknown_or_empty_id_is_no_error(triton: Any, model: TritonPythonModel) -> None:
    nameless = triton.request("", input_ids=[1])
    stops = [triton.request("unknown", stop=True), triton.request("", stop=True)]
    model.execute([nameless, *stops])
    assert [ended(stop) for stop in stops] == [[{"cancelled": [False]}]] * 2
    assert engine_of(model).cancelled == []


def test_a_stop_that_is_false_or_wrong_is_no_stop(triton: Any, model: TritonPythonModel) -> None:
    usual, wrong = triton.request("a", input_ids=[1], stop=False), triton.request("a", stop="x")
    model.execute([usual, wrong])
    assert next(iter(engine_of(model).requests.values())).prompt_ids == [1]
    assert ended(wrong) == [{"error": "stop must be BOOL, got object", "code": "INVALID_ARG"}]


def test_an_answer_to_stop_that_cannot_be_sent_is_logged(triton: Any, model: TritonPythonModel) -> None:
    stop, right = triton.request("a", stop=True), triton.request("b", stop=True)
    stop.sender.broken = 1
    model.execute([stop, right])
    assert ended(right) == [{"cancelled": [False]}]
    [line] = triton.errors()
    assert line.startswith("request 'a': Traceback") and line.endswith("RuntimeError: the pipe is broken")
    triton.senders.remove(stop.sender)


def test_finalize_ends_every_open_request(triton: Any) -> None:
    model = TritonPythonModel()
    model.initialize(arguments())
    requests = [triton.request(input_ids=[1]), triton.request(input_ids=[1], stream=True)]
    model.execute(requests)
    engine, thread = engine_of(model), model._engine_thread
    model.finalize()
    assert not thread.alive
    assert [ended(request)[0]["finish_reason"] for request in requests] == ["cancelled", "cancelled"]
    assert engine.requests == {}


def test_finalize_does_not_wait_for_a_stuck_engine(triton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_model, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(decoder_model, "DRAIN_SECONDS", 0.0)
    release = Event()
    monkeypatch.setattr(FakeEngine, "run", lambda self: release.wait(5))
    model = TritonPythonModel()
    model.initialize(arguments())
    request = triton.request(input_ids=[1])
    model.execute([request])
    model.finalize()
    release.set()
    assert ended(request) == [{"error": "the server is shutting down", "code": "UNAVAILABLE"}]
    assert triton.errors()[0].startswith("the engine did not stop in time")
    model._engine_thread.join(5)


def test_finalize_does_not_wait_for_a_stuck_answer(triton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_model, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(decoder_model, "DRAIN_SECONDS", 0.0)
    model, release = TritonPythonModel(), Event()
    model.initialize(arguments())
    engine_of(model).tokenizer.decode = lambda ids, skip_special_tokens: str(release.wait(5))
    request = triton.request(input_ids=[1], exclude_input_in_output=False)
    model.execute([request])
    model.finalize()
    release.set()
    assert triton.errors() == ["some answers could not be sent within 0.1 s"]
    assert ended(request)[0]["text_output"] == "True"


def test_a_dead_engine_ends_all_requests_and_takes_no_more(triton: Any, model: TritonPythonModel) -> None:
    running = triton.request("job", input_ids=[1], stream=True)
    model.execute([running])
    engine = engine_of(model)
    assert model.is_ready() is True
    engine.crash = RuntimeError("out of memory")
    engine.wake.set()
    assert ended(running) == [{"error": "request 'job': the engine has stopped", "code": "INTERNAL"}]
    late = triton.request(input_ids=[1])
    model.execute([late])
    assert ended(late)[0]["code"] == "UNAVAILABLE"
    eventually(lambda: not model.is_ready())
    [line] = triton.errors()
    assert line.startswith("the engine stopped working\nTraceback") and "out of memory" in line


def test_a_client_that_leaves_cancels_its_request(triton: Any, model: TritonPythonModel) -> None:
    request = triton.request(input_ids=[1], stream=True)
    model.execute([request])
    [request_id] = engine_of(model).requests
    request.sender.cancelled = True
    engine_of(model).emit(request_id, "a", 1)
    assert ended(request)[-1]["code"] == "CANCELLED"
    assert engine_of(model).cancelled == [request_id]


def test_many_requests_from_many_threads_each_end_once(triton: Any, model: TritonPythonModel) -> None:
    """The engine's thread talks while Triton's hands in more; the fake fails on a second or a missing FINAL."""
    requests = [triton.request(str(n), input_ids=[n + 1], stream=n % 2 == 0) for n in range(60)]
    engine = engine_of(model)

    def answer() -> None:
        for _ in requests:
            eventually(lambda: engine.requests)
            request_id = next(iter(engine.requests))
            engine.emit(request_id, "a", 1)
            engine.end(request_id, "stop", "b")

    worker = Thread(target=answer)
    worker.start()
    for request in requests:
        model.execute([request])
    worker.join(20)
    assert ["".join(table["text_output"] for table in ended(request)) for request in requests] == ["ab"] * 60


def test_loading_says_once_what_was_loaded(triton: Any, model: TritonPythonModel) -> None:
    assert triton.log == [
        (
            "info",
            "swift_decoder: models/tiny in bfloat16 on cpu by its kernel (invariant numerics), 4 layers, context 128, "
            "512 cache slots",
        )
    ]


def test_options_come_from_the_config_and_the_environment(triton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIFT_MAX_RUNNING", "3")
    model = TritonPythonModel()
    model.initialize(arguments(max_running="8", max_waiting="9", FORCE_CPU_ONLY_INPUT_TENSORS="no"))
    config = engine_of(model).config
    model.finalize()
    assert (config.max_running, config.max_waiting) == (3, 9)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"model": "missing"}, "the model 'missing' does not exist"),
        ({"dtype": "int3"}, "dtype must be one of auto, float32, bfloat16, float16, int8, got 'int3'"),
    ],
)
def test_a_failed_load_is_one_sentence_in_tritons_log(triton: Any, parameters: dict[str, str], sentence: str) -> None:
    with pytest.raises(triton.Exception) as caught:
        TritonPythonModel().initialize(arguments(**parameters))
    assert str(caught.value) == sentence
    assert caught.value.__suppress_context__
