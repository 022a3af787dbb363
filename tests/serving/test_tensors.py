"""Requests become dataclasses, outputs become tensors; every mistake is named."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from swift_backend.errors import InvalidRequest
from swift_backend.params import SamplingParams
from swift_backend.sequence import Output, RequestStats
from swift_backend.serving.tensors import (
    Call,
    input_id_arrays,
    merge,
    output_arrays,
    read_call,
    read_flag,
    read_prompt,
    stop_arrays,
)

IDS = np.array([5, 6], dtype=np.int32)


class Given:
    """A request without Triton."""

    def __init__(self, parameters: str = "", **arrays: np.ndarray) -> None:
        self._arrays, self._parameters = arrays, parameters

    def array(self, name: str) -> np.ndarray | None:
        return self._arrays.get(name)

    def parameters(self) -> str:
        return self._parameters


def text(value: str | bytes) -> np.ndarray:
    return np.array([value.encode() if isinstance(value, str) else value], dtype=np.object_)


def flag(value: bool) -> np.ndarray:
    return np.array([value])


def call(parameters: dict[str, Any] | None = None, sampling: Any = None, **arrays: np.ndarray) -> Call:
    if sampling is not None:
        arrays["sampling_parameters"] = text(json.dumps(sampling))
    return read_call(Given(json.dumps(parameters or {}), **{"input_ids": IDS, **arrays}))


def test_a_bare_request_gets_the_defaults() -> None:
    assert read_call(Given(input_ids=IDS)) == Call([5, 6], SamplingParams(), stream=False, exclude_input=True)


def test_prompt_ids_are_plain_ints() -> None:
    assert [type(token) for token in call().prompt_ids] == [int, int]


def test_all_inputs_are_read() -> None:
    given = call(
        sampling={"max_tokens": 3, "stop": ["a", "b"]},
        stream=flag(True),
        exclude_input_in_output=flag(False),
        return_finish_reason=flag(True),
        return_logprobs=flag(False),
    )
    assert given == Call([5, 6], SamplingParams(max_tokens=3, stop=("a", "b")), stream=True, exclude_input=False)


def test_request_parameters_are_sampling_parameters() -> None:
    params = call(parameters={"max_tokens": 7, "temperature": 0.5}, sampling={"seed": 1}).params
    assert params == SamplingParams(max_tokens=7, temperature=0.5, seed=1)


def test_parameters_of_triton_and_its_clients_are_ignored() -> None:
    reserved = ["id", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers"]
    reserved += ["binary_data_output", "triton_enable_empty_final_response", "triton_grpc_error"]
    assert call(parameters=dict.fromkeys(reserved, 1)).params == SamplingParams()


def test_reserved_names_are_no_sampling_parameters() -> None:
    with pytest.raises(InvalidRequest, match="priority is not a sampling parameter"):
        call(sampling={"priority": 1})


def test_the_same_key_twice_needs_the_same_value() -> None:
    assert call(parameters={"max_tokens": 7}, sampling={"max_tokens": 7}).params.max_tokens == 7
    with pytest.raises(InvalidRequest) as caught:
        call(parameters={"max_tokens": 8}, sampling={"max_tokens": 7})
    assert caught.value.field == "max_tokens"
    assert str(caught.value) == (
        "max_tokens is given twice with different values: 7 in sampling_parameters and 8 as a request parameter"
    )


@pytest.mark.parametrize("logprobs", [0, 5])
def test_logprobs_are_refused_not_ignored(logprobs: int) -> None:
    with pytest.raises(InvalidRequest, match=r"^logprobs is not supported yet"):
        call(sampling={"logprobs": logprobs})
    with pytest.raises(InvalidRequest, match=r"^return_logprobs is not supported yet"):
        call(return_logprobs=flag(True))


def test_null_logprobs_ask_for_nothing() -> None:
    assert call(sampling={"logprobs": None}).params == SamplingParams()


@pytest.mark.parametrize(
    ("field", "arrays", "message"),
    [
        ("input_ids", {"input_ids": None}, "input_ids is missing"),
        ("input_ids", {"input_ids": IDS[:0]}, "input_ids must have shape [n] with n >= 1, got [0]"),
        ("input_ids", {"input_ids": IDS.reshape(1, 2)}, "input_ids must have shape [n] with n >= 1, got [1, 2]"),
        ("input_ids", {"input_ids": IDS.astype(np.int64)}, "input_ids must be INT32, got int64"),
        ("stream", {"stream": np.array([1])}, "stream must be BOOL, got int64"),
        ("stream", {"stream": np.array([True, True])}, "stream must have shape [1], got [2]"),
        ("stream", {"stream": np.array([], dtype=np.bool_)}, "stream must have shape [1], got [0]"),
        (
            "exclude_input_in_output",
            {"exclude_input_in_output": IDS},
            "exclude_input_in_output must be BOOL, got int32",
        ),
        ("return_finish_reason", {"return_finish_reason": IDS}, "return_finish_reason must be BOOL, got int32"),
        ("sampling_parameters", {"sampling_parameters": IDS}, "sampling_parameters must be STRING, got int32"),
        (
            "sampling_parameters",
            {"sampling_parameters": np.array([b"{}", b"{}"], dtype=np.object_)},
            "sampling_parameters must have shape [1], got [2]",
        ),
        (
            "sampling_parameters",
            {"sampling_parameters": text("[1]")},
            "sampling_parameters must be a JSON object, got list",
        ),
        (
            "sampling_parameters",
            {"sampling_parameters": text("{")},
            "sampling_parameters is not valid JSON: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)",
        ),
        (
            "sampling_parameters",
            {"sampling_parameters": text(b'{"\xff')},
            "sampling_parameters is not valid UTF-8: invalid start byte at byte 2",
        ),
        (
            "temperature",
            {"sampling_parameters": text('{"temperature": 7.5}')},
            "temperature must be in [0, 5], got 7.5",
        ),
    ],
)
def test_a_wrong_input_is_named(field: str, arrays: dict[str, Any], message: str) -> None:
    given = {name: array for name, array in {"input_ids": IDS, **arrays}.items() if array is not None}
    with pytest.raises(InvalidRequest) as caught:
        read_call(Given(**given))
    assert (caught.value.field, str(caught.value)) == (field, message)


def test_an_unknown_parameter_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="temprature is not a sampling parameter; did you mean temperature"):
        call(parameters={"temprature": 1})


def test_json_nested_beyond_reason_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match=r"^sampling_parameters is not valid JSON"):
        read_call(Given(input_ids=IDS, sampling_parameters=text('{"stop":' + "[" * 200_000)))


def test_flags_have_a_default() -> None:
    assert [read_flag(Given(), "stop"), read_flag(Given(), "stop", default=True)] == [False, True]
    assert read_flag(Given(stop=flag(False)), "stop", default=True) is False


def test_a_text_prompt_is_taken_as_it_is() -> None:
    assert read_prompt(Given(text_input=text(" Grüße\n"))) == " Grüße\n"


def test_messages_are_parsed() -> None:
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": "Hi 👋"}]
    assert read_prompt(Given(messages=text(json.dumps(messages)))) == messages


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "exactly one of text_input and messages must be given, got neither"),
        (
            {"text_input": text("a"), "messages": text("[]")},
            "exactly one of text_input and messages must be given, got both",
        ),
        ({"text_input": text("")}, "text_input must not be empty"),
        ({"text_input": text(b"ab\xe2\x82")}, "text_input is not valid UTF-8: unexpected end of data at byte 2"),
        ({"text_input": IDS}, "text_input must be STRING, got int32"),
        ({"messages": text("hello")}, "messages is not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        ({"messages": text("[]")}, "messages must be a JSON list of at least one {role, content}"),
        ({"messages": text('{"role": "user"}')}, "messages must be a JSON list of at least one {role, content}"),
        (
            {"messages": text('[{"role": "user", "content": "a"}, {"role": "user"}]')},
            "messages[1] must be an object with the keys role and content, got ['role']",
        ),
        ({"messages": text('["hi"]')}, "messages[0] must be an object with the keys role and content, got str"),
        (
            {"messages": text('[{"role": "user", "content": [1]}]')},
            "messages[0].content must be a string, got list",
        ),
        (
            {"messages": text('[{"role": "user", "content": "\\ud83d"}]')},
            "messages[0].content holds half a surrogate pair, which is no text",
        ),
    ],
)
def test_a_wrong_prompt_is_named(arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_prompt(Given(**arrays))
    assert str(caught.value) == message
    assert caught.value.field == ("messages" if message.startswith("messages") else "text_input")


def test_a_whole_surrogate_pair_is_text() -> None:
    messages = read_prompt(Given(messages=text('[{"role": "user", "content": "\\ud83d\\udc4b"}]')))
    assert messages == [{"role": "user", "content": "👋"}]


DATATYPES = {
    "text_output": np.object_,
    "output_ids": np.int32,
    "finish_reason": np.object_,
    "num_input_tokens": np.uint32,
    "num_output_tokens": np.uint32,
    "cumulative_logprob": np.float32,
    "logprobs": np.object_,
    "total_draft_tokens": np.int32,
    "total_accepted_draft_tokens": np.int32,
    "acceptance_rate": np.float32,
}


@pytest.mark.parametrize("token_ids", [(), (7, 8, 9)])
def test_every_response_has_the_contracts_ten_outputs(token_ids: tuple[int, ...]) -> None:
    arrays = output_arrays(Output("1", token_ids=token_ids))
    assert {name: array.dtype for name, array in arrays.items()} == DATATYPES
    assert {name: array.shape for name, array in arrays.items()} == {
        **dict.fromkeys(DATATYPES, (1,)),
        "output_ids": (len(token_ids),),
    }


def test_the_outputs_say_what_the_engine_said() -> None:
    stats = RequestStats(draft_tokens=8, accepted_draft_tokens=6, output_tokens=30)
    arrays = output_arrays(Output("1", "é", (7, 8), "length", 11, stats))
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "text_output": ["é".encode()],
        "output_ids": [7, 8],
        "finish_reason": [b"length"],
        "num_input_tokens": [11],
        "num_output_tokens": [2],
        "cumulative_logprob": [0.0],
        "logprobs": [b""],
        "total_draft_tokens": [8],
        "total_accepted_draft_tokens": [6],
        "acceptance_rate": [0.75],
    }


def test_merging_keeps_the_text_and_the_last_word() -> None:
    early, late = RequestStats(draft_tokens=2), RequestStats(draft_tokens=5)
    merged = merge(
        [Output("1", "ab", (1,), "", 3, early), Output("1", "", (2, 3)), Output("1", "c", (4,), "stop", 3, late)]
    )
    assert merged == Output("1", "abc", (1, 2, 3, 4), "stop", 3, late)


def test_the_small_answers() -> None:
    stopped, ids = stop_arrays(True)["cancelled"], input_id_arrays([3, 4])["input_ids"]
    assert (str(stopped.dtype), stopped.tolist()) == ("bool", [True])
    assert (str(ids.dtype), ids.tolist()) == ("int32", [3, 4])
