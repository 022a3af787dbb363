"""Requests become dataclasses; every mistake is named."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from swift_backend.errors import InvalidRequest
from swift_backend.params import SamplingParams
from swift_backend.serving.tensors import Call, read_call, read_flag, read_prompt

IDS = np.array([5, 6], dtype=np.int32)


class Given:
    """A request without Triton."""

    def __init__(self, parameters: str = "", timeout_us: int = 0, **arrays: np.ndarray) -> None:
        self._arrays, self._parameters, self._timeout_us = arrays, parameters, timeout_us

    def array(self, name: str) -> np.ndarray | None:
        return self._arrays.get(name)

    def parameters(self) -> str:
        return self._parameters

    def timeout_us(self) -> int:
        return self._timeout_us


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
    reserved = ["id", "sequence_id", "sequence_start", "sequence_end", "priority", "headers"]
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


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ({"temperature": "0.5"}, {"temperature": 0.5}),
        ({"ignore_eos": "true"}, {"ignore_eos": True}),
        ({"max_tokens": 7.0}, {"max_tokens": "7"}),
        ({"stop": ["x"]}, {"stop": "x"}),
        ({"seed": None}, {"seed": 3}),
        ({"n": 1}, {"n": 1}),
    ],
)
def test_two_spellings_of_a_value_are_one(inner: dict[str, Any], outer: dict[str, Any]) -> None:
    assert call(parameters=outer, sampling=inner).params == SamplingParams.from_mapping(outer)


@pytest.mark.parametrize(
    ("inner", "outer", "said"),
    [
        ({"n": 1}, {"n": 2}, "n is given twice with different values: 1 in sampling_parameters and 2 as a request"),
        ({"n": 1}, {"n": True}, "n is given twice with different values: 1 in sampling_parameters and True"),
        ({"seed": 1}, {"seed": True}, "seed must be an integer, got True"),
        ({"stop": ["x", "y"]}, {"stop": "x"}, "stop is given twice with different values: ['x', 'y'] in sampling_para"),
        ({"top_k": 3}, {"top_k": "three"}, "top_k must be an integer, got 'three'"),
    ],
)
def test_two_values_are_not_one(inner: dict[str, Any], outer: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        call(parameters=outer, sampling=inner)
    assert str(caught.value).startswith(said) and caught.value.field == next(iter(inner))


def test_a_key_may_not_be_given_twice_inside_the_json_either() -> None:
    twice = text('{"temperature": 0.1, "temperature": 0.9}')
    with pytest.raises(InvalidRequest, match="temperature is given twice in sampling_parameters") as caught:
        read_call(Given(input_ids=IDS, sampling_parameters=twice))
    assert caught.value.field == "temperature"


def test_an_empty_text_holds_no_sampling_parameters() -> None:
    assert read_call(Given(input_ids=IDS, sampling_parameters=text(""))).params == SamplingParams()


@pytest.mark.parametrize("key", ["stop", "bad_words"])
def test_strings_must_be_text(key: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{key} must be .*, got "):
        call(sampling={key: ["fine", "\ud800"]})


@pytest.mark.parametrize(
    ("flag_given", "key_given", "logprobs"),
    [
        (None, None, None),
        (False, None, None),
        (True, None, 0),
        (None, 3, 3),
        (True, 3, 3),
        (False, 3, 3),
        (False, 0, 0),
    ],
)
def test_the_flag_and_the_key_ask_for_logprobs(
    flag_given: bool | None, key_given: int | None, logprobs: int | None
) -> None:
    arrays = {} if flag_given is None else {"return_logprobs": flag(flag_given)}
    given = call(sampling={"logprobs": key_given, "max_tokens": 9}, **arrays)
    assert given.params == SamplingParams(max_tokens=9, logprobs=logprobs)


def test_the_openai_frontends_word_for_no_logprobs_leaves_the_flag_alone() -> None:
    assert call(sampling={"logprobs": False}).params.logprobs is None
    assert call(sampling={"logprobs": False}, return_logprobs=flag(True)).params.logprobs == 0


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
        ("return_logprobs", {"return_logprobs": IDS[:1]}, "return_logprobs must be BOOL, got int32"),
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
    with pytest.raises(InvalidRequest, match=r"^sampling_parameters is not valid JSON: it is nested too deeply$"):
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
            {"messages": text('[{"role": "user", "content": "a", "content": "b"}]')},
            "content is given twice in messages with different values: 'a' and 'b'",
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
    first = message.split("[")[0].split()[0]
    assert caught.value.field == (first if first in ("messages", "content") else "text_input")


def test_a_whole_surrogate_pair_is_text() -> None:
    messages = read_prompt(Given(messages=text('[{"role": "user", "content": "\\ud83d\\udc4b"}]')))
    assert messages == [{"role": "user", "content": "👋"}]


@pytest.mark.parametrize(
    ("key", "over_grpc", "over_http", "earliest"),
    [
        (None, 0, None, None),
        (None, 0, 0, None),
        (None, 7000, None, 7),
        (None, 0, 7000, 7),
        (None, 1, None, 1),
        (9, 0, None, 9),
        (9, 8001, 10_000, 9),
        (9, 7001, 10_000, 8),
        (9, 0, 6000, 6),
    ],
)
def test_the_earliest_deadline_counts(
    key: int | None, over_grpc: int, over_http: int | None, earliest: int | None
) -> None:
    """timeout_ms is ours; Triton's own is in microseconds, and over HTTP it is a mere parameter."""
    parameters = {name: value for name, value in (("timeout_ms", key), ("timeout", over_http)) if value is not None}
    given = Given(json.dumps(parameters), over_grpc, input_ids=IDS)
    assert read_call(given).params.timeout_ms == earliest


@pytest.mark.parametrize("value", [-1, 1.5, "soon", "7000", True, [1]])
def test_a_timeout_that_is_none_is_named(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="timeout must be a whole number of microseconds, got") as caught:
        read_call(Given(json.dumps({"timeout": value}), input_ids=IDS))
    assert caught.value.field == "timeout"
