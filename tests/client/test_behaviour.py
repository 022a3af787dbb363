"""What every client does on every backend: {sync, async} × {gRPC, HTTP} × {FakeTransport, wire, real tritonserver}."""

from __future__ import annotations

import uuid

import pytest
from swift_client import Cancelled, InvalidRequest, fake_response
from swift_client.core.request import Response

from tests.client.conftest import DECODER, DOOR, LASTING, Backend, lasting_answer
from tests.client.wire_servers import within

pytestmark = pytest.mark.timeout(120)

FIVE = {"max_tokens": 5, "ignore_eos": True, "speculation": "off"}
ANSWER = [fake_response(f" w{n}", [n], "length" if n == 5 else "") for n in range(1, 6)]
PROMPTS = pytest.mark.parametrize("prompt", [DOOR, DECODER, {"messages": [{"role": "user", "content": "w5 w6 w7"}]}])


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word[1:]) for word in text.split())


@PROMPTS
def test_a_stream_and_the_whole_are_the_same(backend: Backend, kind: str, prompt: dict[str, object]) -> None:
    backend.script([ANSWER])
    driver = backend.driver(kind)
    with driver.stream(**prompt, **FIVE, request_id="mine") as stream:
        assert (stream.finish_reason, stream.text) == (None, "")
        chunks = list(stream)
    assert sum(len(chunk.token_ids) for chunk in chunks) == 5  # a busy server puts several into a chunk
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    result = stream.result()
    assert stream.text == result.text == "".join(chunk.text for chunk in chunks)
    assert stream.token_ids == result.token_ids == words(result.text)
    assert (stream.finish_reason, result.finish_reason, result.request_id) == ("length", "length", "mine")
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.total_tokens) == (3, 5, 8)
    assert stream.usage == result.usage and stream.speculation == result.speculation
    assert result.speculation.draft_tokens == 0
    assert 0 < result.timing.first_token_seconds <= result.timing.seconds < 20
    whole = driver.generate(**prompt, **FIVE)
    assert (whole.text, whole.token_ids, whole.finish_reason) == (result.text, result.token_ids, "length")
    assert uuid.UUID(whole.request_id).version == 4


def test_chat_is_generate_with_messages(backend: Backend, kind: str) -> None:
    backend.script([ANSWER])
    driver = backend.driver(kind)
    messages = [{"role": "user", "content": "w5 w6 w7"}]
    assert driver.call("chat", messages, **FIVE).text == driver.generate(messages=messages, **FIVE).text


@pytest.mark.parametrize("prompt", [DOOR, DECODER])
def test_leaving_early_frees_the_place_within_a_second(backend: Backend, kind: str, prompt: dict[str, object]) -> None:
    backend.script([lasting_answer()])
    driver = backend.driver(kind)
    with driver.stream(**prompt, **LASTING) as stream:
        for _ in range(4):
            next(stream)
        assert backend.busy() == 1
    assert within(1, lambda: backend.busy() == 0) < 1
    assert stream.finish_reason == "cancelled" and 4 <= len(stream.token_ids) < 100
    assert stream.result().text == stream.text
    with pytest.raises(Cancelled, match=r"the stream was closed \(request "):
        next(stream)


def test_leaving_before_the_first_chunk(backend: Backend, kind: str) -> None:
    backend.script([lasting_answer()])
    with backend.driver(kind).stream(**DOOR, **LASTING) as stream:
        pass
    assert (stream.finish_reason, stream.text, backend.busy()) == ("cancelled", "", 0)


def test_closing_the_client_cancels_its_streams(backend: Backend, kind: str) -> None:
    backend.script([lasting_answer()])
    driver = backend.driver(kind)
    streams = [driver.stream(**DOOR, **LASTING) for _ in range(3)]
    for stream in streams:
        next(stream)
    driver.close()
    assert within(1, lambda: backend.busy() == 0) < 1
    assert [stream.finish_reason for stream in streams] == ["cancelled"] * 3


def test_a_closed_client_refuses(backend: Backend, kind: str) -> None:
    driver = backend.driver(kind)
    driver.close()
    with pytest.raises(Cancelled, match="the client is closed"):
        driver.stream("w5")


def test_cancelling_by_id_ends_the_answer(backend: Backend, kind: str) -> None:
    backend.script([lasting_answer()])
    driver = backend.driver(kind)
    assert driver.call("cancel", "nobody") is False
    with driver.stream(**DOOR, **LASTING, request_id="somebody") as stream:
        next(stream)
        assert driver.call("cancel", "somebody") is True
        list(stream)
    assert stream.result().finish_reason == "cancelled"
    assert within(1, lambda: backend.busy() == 0) < 1


def test_a_wrong_request_names_its_field_and_id(backend: Backend, kind: str) -> None:
    backend.script([[Response(error="in ensemble 'swift', temperature must be in [0, 5], got 9", final=True)], ANSWER])
    driver = backend.driver(kind)
    with pytest.raises(InvalidRequest) as caught:
        driver.generate(**DOOR, temperature=9, request_id="wrong")
    assert (caught.value.field, caught.value.request_id) == ("temperature", "wrong")
    assert str(caught.value) == "temperature must be in [0, 5], got 9 (request wrong)"
    assert driver.generate(**DOOR, **FIVE).finish_reason == "length"


@pytest.mark.parametrize("prompt", [{}, {"prompt": "a", "input_ids": [1]}, {"messages": [], "input_ids": [1]}])
def test_exactly_one_prompt(backend: Backend, kind: str, prompt: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=r"exactly one of .*, got \d \(request r\)"):
        backend.driver(kind).generate(**prompt, request_id="r")


def test_many_streams_at_a_time_on_one_client(backend: Backend, kind: str) -> None:
    backend.script([ANSWER])
    driver = backend.driver(kind)
    streams = [driver.stream(**(DOOR if n % 2 else DECODER), **FIVE) for n in range(8)]
    first = [next(stream) for stream in streams]
    rest = [list(stream) for stream in reversed(streams)]
    assert [chunk.finish_reason for chunk in first] == [None] * 8
    assert [chunks[-1].finish_reason for chunks in rest] == ["length"] * 8
    assert len({stream.result().text for stream in streams}) == 1


def test_what_the_server_says_about_itself(backend: Backend, kind: str) -> None:
    driver = backend.driver(kind)
    health, metadata, metrics = (driver.call(name) for name in ("health", "metadata", "metrics"))
    assert (health.live, health.ready, health.models["swift"]) == (True, True, True)
    assert set(metadata.models) == {"swift", "swift_decoder"} and metadata.version
    assert metadata.models["swift"].name == "swift"
    assert metrics.running_requests == (3 if backend.behaviour or backend.transport else 0)
    assert metrics.acceptance_rate == 0
    if not backend.behaviour and not backend.transport:
        tensors = {tensor.name: tensor for tensor in metadata.models["swift_decoder"].inputs}
        assert (tensors["input_ids"].datatype, tensors["input_ids"].shape) == ("INT32", (-1,))
        assert metrics.total("kv_tokens_capacity") == 200_000 and bool(health)
        assert metrics.histogram("request_seconds").count == metrics.total("requests_total") - sum(
            metrics.requests[outcome] for outcome in ("invalid", "unavailable")
        )
