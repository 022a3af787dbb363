"""What does a request say? Pure conversions of tensors to our dataclasses, without Triton."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from swift_backend.errors import InvalidRequest
from swift_backend.params import SamplingParams
from swift_backend.request_keys import KEYS, is_text, parse_key, shown
from swift_backend.serving.strict_json import read_json, read_json_object, same

Array = NDArray[Any]
Messages = list[dict[str, str]]

# What Triton itself and its clients put among the request parameters.
RESERVED_PARAMETERS = frozenset(
    {"id", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)
RESERVED_PREFIX = "triton_"
# Accepted for compatibility with Triton's vLLM backend: what they ask for is always sent, but logprobs.
COMPATIBILITY_FLAGS = (
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_output_tokens",
    "return_cumulative_logprob",
    "return_logprobs",
)
MESSAGE_KEYS = {"role", "content"}


class Inputs(Protocol):
    """What the converters need of a Triton request."""

    def array(self, name: str) -> Array | None:
        """The input tensor of this name, or None where the client left it out."""

    def parameters(self) -> str:
        """The request parameters as a JSON object, or an empty string."""

    def timeout_us(self) -> int:
        """Triton's own request timeout in microseconds, 0 for none."""


@dataclass(frozen=True, slots=True)
class Call:
    """A generation request as the client wrote it: checked, but not yet against the model."""

    prompt_ids: list[int]
    params: SamplingParams
    stream: bool = False
    exclude_input: bool = True


def read_call(inputs: Inputs) -> Call:
    """The request of `swift_decoder`; InvalidRequest names the first field that is wrong."""
    for name in COMPATIBILITY_FLAGS:
        read_flag(inputs, name)
    return Call(
        prompt_ids=_token_ids(inputs, "input_ids"),
        params=_sampling_params(inputs),
        stream=read_flag(inputs, "stream"),
        exclude_input=read_flag(inputs, "exclude_input_in_output", default=True),
    )


def read_prompt(inputs: Inputs) -> str | Messages:
    """The request of `swift_tokenizer`: a raw text, or chat messages; InvalidRequest if not exactly one of them."""
    text, messages = _string(inputs, "text_input"), _string(inputs, "messages")
    if text is not None and messages is not None:
        raise InvalidRequest("text_input", "exactly one of text_input and messages must be given, got both")
    if messages is not None:
        return _messages(messages)
    if text is None:
        raise InvalidRequest("text_input", "exactly one of text_input and messages must be given, got neither")
    if not text:
        raise InvalidRequest("text_input", "text_input must not be empty")
    return text


def read_flag(inputs: Inputs, name: str, default: bool = False) -> bool:
    """A BOOL [1] input; InvalidRequest on another datatype or shape."""
    array = inputs.array(name)
    if array is None:
        return default
    if array.dtype != np.bool_:
        raise InvalidRequest(name, f"{name} must be BOOL, got {array.dtype}")
    _one_element(name, array)
    return bool(array[0])


def _sampling_params(inputs: Inputs) -> SamplingParams:
    """The keys of sampling_parameters (an empty string is none) and the request parameters, checked."""
    values = read_json_object("sampling_parameters", _string(inputs, "sampling_parameters") or "{}")
    parameters = read_json_object("parameters", inputs.parameters() or "{}")
    for key, value in _ours(parameters).items():
        if values.get(key) is None:
            values[key] = value
        else:
            _check_same(key, values[key], value)
    params = SamplingParams.from_mapping(values)
    deadlines = [params.timeout_ms, _milliseconds(inputs.timeout_us()), _milliseconds(parameters.get("timeout"))]
    params = replace(params, timeout_ms=min((one for one in deadlines if one is not None), default=None))
    if params.logprobs is None and read_flag(inputs, "return_logprobs"):
        return replace(params, logprobs=0)
    return params


def _check_same(key: str, inner: Any, outer: Any) -> None:
    """The same key in both places must mean the same."""
    known = key in KEYS
    if not same(*(parse_key(key, value) if known else value for value in (inner, outer))):
        both = f"{shown(inner)} in sampling_parameters and {shown(outer)} as a request parameter"
        raise InvalidRequest(key[:80], f"{key[:80]} is given twice with different values: {both}")


def _ours(parameters: dict[str, Any]) -> dict[str, Any]:
    """The request parameters that are sampling keys, or are meant to be."""
    ours = parameters.keys() - RESERVED_PARAMETERS
    return {key: value for key, value in parameters.items() if key in ours and not key.startswith(RESERVED_PREFIX)}


def _milliseconds(timeout: Any) -> int | None:
    """Triton's request timeout, in microseconds, rounded up; over HTTP it is a parameter like any other. 0 is none."""
    if timeout is None or timeout == 0:
        return None
    if type(timeout) is not int or timeout < 0:
        raise InvalidRequest("timeout", f"timeout must be a whole number of microseconds, got {shown(timeout)}")
    return -(-timeout // 1000)


def _token_ids(inputs: Inputs, name: str) -> list[int]:
    array = inputs.array(name)
    if array is None:
        raise InvalidRequest(name, f"{name} is missing")
    if array.dtype != np.int32:
        raise InvalidRequest(name, f"{name} must be INT32, got {array.dtype}")
    if array.ndim != 1 or array.size == 0:
        raise InvalidRequest(name, f"{name} must have shape [n] with n >= 1, got {list(array.shape)}")
    return [int(token) for token in array]


def _string(inputs: Inputs, name: str) -> str | None:
    """A STRING [1] input as text; InvalidRequest on another datatype or shape, or where it isn't UTF-8."""
    array = inputs.array(name)
    if array is None:
        return None
    if array.dtype != np.object_:
        raise InvalidRequest(name, f"{name} must be STRING, got {array.dtype}")
    _one_element(name, array)
    try:
        return bytes(array[0]).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(name, f"{name} is not valid UTF-8: {error.reason} at byte {error.start}") from None


def _one_element(name: str, array: Array) -> None:
    if array.shape != (1,):
        raise InvalidRequest(name, f"{name} must have shape [1], got {list(array.shape)}")


def _messages(text: str) -> Messages:
    messages = read_json("messages", text)
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages", "messages must be a JSON list of at least one {role, content}")
    for position, message in enumerate(messages):
        _check_message(f"messages[{position}]", message)
    return messages


def _check_message(name: str, message: Any) -> None:
    if not isinstance(message, dict) or message.keys() != MESSAGE_KEYS:
        got = sorted(message) if isinstance(message, dict) else type(message).__name__
        raise InvalidRequest("messages", f"{name} must be an object with the keys role and content, got {got}")
    for key, value in message.items():
        if not isinstance(value, str):
            raise InvalidRequest("messages", f"{name}.{key} must be a string, got {type(value).__name__}")
        if not is_text(value):
            raise InvalidRequest("messages", f"{name}.{key} holds half a surrogate pair, which is no text")
