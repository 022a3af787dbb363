"""What is sent, and how it reads on the wire."""

from __future__ import annotations

import json
import uuid
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swift_client import InvalidRequest, ProtocolError
from swift_client.core import grpc_message, http_body
from swift_client.core.request import InferRequest, Models, Question, Response, build_request, stop_request
from tritonclient.grpc import service_pb2

from tests.client.wire_servers import event, grpc_answer, grpc_inputs


def test_the_three_prompts_go_to_their_models() -> None:
    text = build_request(Models(), "hello", {})
    assert (text.model, text.inputs) == ("swift", {"text_input": "hello", "stream": True})
    assert uuid.UUID(text.request_id).version == 4
    chat = build_request(Models(), None, {"messages": [{"role": "user", "content": "é"}], "request_id": "r"})
    assert chat.inputs == {"messages": '[{"role": "user", "content": "é"}]', "stream": True}
    ids = build_request(Models(decoder="d"), None, {"input_ids": np.array([1, 2])})
    assert (ids.model, ids.inputs) == ("d", {"input_ids": [1, 2], "stream": True})
    assert stop_request(Models(decoder="d"), "r") == InferRequest("d", {"stop": True}, "r")


def test_sampling_keys_are_passed_on_as_they_are() -> None:
    """Wrong ones too: the server is the authority."""
    options = {"temperature": 99, "stop": ("a", "b"), "logit_bias": {7: -1.5}, "seed": None, "temprature": 1,
               "top_k": np.int64(3), "stop_token_ids": np.array([4]), "timeout_ms": 50}  # fmt: skip
    request = build_request(Models(), "x", {**options, "timeout": 3.0, "exclude_input_in_output": False})
    assert json.loads(str(request.inputs["sampling_parameters"])) == {
        "temperature": 99, "stop": ["a", "b"], "logit_bias": {"7": -1.5}, "temprature": 1, "top_k": 3,
        "stop_token_ids": [4], "timeout_ms": 50,
    }  # fmt: skip
    assert request.inputs["exclude_input_in_output"] is False


def test_what_is_no_json_is_refused_here() -> None:
    with pytest.raises(InvalidRequest, match=r"seed must be JSON.*\(request r\)") as caught:
        build_request(Models(), "x", {"seed": object(), "top_k": 3, "request_id": "r"})
    assert caught.value.field == "seed"


def test_a_timeout_is_not_the_servers_deadline() -> None:
    assert "sampling_parameters" not in build_request(Models(), "x", {"timeout": 3.0}).inputs


@given(st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.integers(-(2**31), 2**31 - 1)), st.booleans())
def test_inputs_survive_the_way_over_grpc(text: str, ids: list[int], flag: bool) -> None:
    request = InferRequest("m", {"text_input": text, "input_ids": ids, "stream": flag}, "r")
    message = service_pb2.ModelInferRequest.FromString(grpc_message.infer_message(request).SerializeToString())
    assert (grpc_inputs(message), message.id, message.model_name) == (request.inputs, "r", "m")


OUTPUTS = st.fixed_dictionaries(
    {
        "text_output": st.text(st.characters(exclude_categories=["Cs"])),
        "output_ids": st.lists(st.integers(0, 2**31 - 1), max_size=4),
        "finish_reason": st.sampled_from(["", "stop", "length"]),
        "num_input_tokens": st.integers(0, 2**32 - 1),
        "cumulative_logprob": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "cancelled": st.booleans(),
    }
)


@given(OUTPUTS)
def test_outputs_survive_both_ways(outputs: dict[str, Any]) -> None:
    message = grpc_answer(Response(outputs, final=True))
    again = service_pb2.ModelStreamInferResponse.FromString(message.SerializeToString())
    assert grpc_message.read_message(again) == Response(outputs, final=True)
    read = http_body.read_event(event(Response(outputs)).decode().removeprefix("data: ")).outputs
    assert {name: read[name] for name in outputs} == outputs


def test_a_body_for_http() -> None:
    request = InferRequest("m", {"text_input": "é", "stream": True}, "r")
    assert http_body.infer_path(request) == "/v2/models/m/generate_stream"
    assert json.loads(http_body.infer_body(request)) == {"text_input": "é", "stream": True, "id": "r"}


@pytest.mark.parametrize("data", ["", "{", "[1]", "3", "[DONE]"])
def test_an_event_that_is_no_object(data: str) -> None:
    with pytest.raises(ProtocolError, match="something else than"):
        http_body.read_event(data)


def test_an_event_with_an_error() -> None:
    assert http_body.read_event('{"error": "no"}') == Response(error="no")
    assert http_body.read_event('{"error": ""}').error


@pytest.mark.parametrize(
    ("name", "datatype", "content"),
    [
        ("text_output", "BYTES", b"\1"), ("text_output", "BYTES", b"\1\0\0\0\xff"), ("text_output", "BYTES", b""),
        ("output_ids", "INT32", b"123"), ("num_input_tokens", "UINT32", b""), ("other", "FP16", b"12"),
    ],
)  # fmt: skip
def test_tensors_that_are_not_what_they_say(name: str, datatype: str, content: bytes) -> None:
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.outputs.add(name=name, datatype=datatype, shape=[1])
    with pytest.raises(ProtocolError, match="1 outputs came with 0 contents"):
        grpc_message.read_message(message)
    message.infer_response.raw_output_contents.append(content)
    with pytest.raises(ProtocolError, match=f"{name} is no {datatype} of one element"):
        grpc_message.read_message(message)


def test_answers_to_questions_that_are_none() -> None:
    for body in ("<html>", "[]"):
        with pytest.raises(ProtocolError, match="something else than"):
            http_body.read_answer(Question("server"), 200, body)
