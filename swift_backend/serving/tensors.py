"""What does a request say, and what do we answer? Pure conversions of tensors and our dataclasses, without Triton."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from swift_backend.errors import InvalidRequest
from swift_backend.params import SamplingParams
from swift_backend.sequence import Output

Array = NDArray[Any]
Messages = list[dict[str, str]]

# What Triton itself and its clients put among the request parameters.
RESERVED_PARAMETERS = frozenset(
    {"id", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)
RESERVED_PREFIX = "triton_"
# Accepted for compatibility with Triton's vLLM backend: what they ask for is always sent.
COMPATIBILITY_FLAGS = (
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_output_tokens",
    "return_cumulative_logprob",
)
MESSAGE_KEYS = {"role", "content"}


class Inputs(Protocol):
    """What the converters need of a Triton request."""

    def array(self, name: str) -> Array | None:
        """The input tensor of this name, or None where the client left it out."""

    def parameters(self) -> str:
        """The request parameters as a JSON object, or an empty string."""


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
    if read_flag(inputs, "return_logprobs"):
        raise InvalidRequest("return_logprobs", "return_logprobs is not supported yet, got true")
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


def merge(outputs: Sequence[Output]) -> Output:
    """Consecutive outputs of one request as one: texts and ids in a row, the rest as the last says."""
    token_ids = tuple(token for output in outputs for token in output.token_ids)
    return replace(outputs[-1], text="".join(output.text for output in outputs), token_ids=token_ids)


def output_arrays(output: Output) -> dict[str, Array]:
    """The ten outputs of one response; each has shape [1] but output_ids, which has one element a token."""
    stats = output.stats
    return {
        "text_output": string_array(output.text),
        "output_ids": np.array(output.token_ids, dtype=np.int32),
        "finish_reason": string_array(output.finish_reason),
        "num_input_tokens": np.array([output.num_prompt_tokens], dtype=np.uint32),
        "num_output_tokens": np.array([len(output.token_ids)], dtype=np.uint32),
        "cumulative_logprob": np.zeros(1, dtype=np.float32),
        "logprobs": string_array(""),
        "total_draft_tokens": np.array([stats.draft_tokens], dtype=np.int32),
        "total_accepted_draft_tokens": np.array([stats.accepted_draft_tokens], dtype=np.int32),
        "acceptance_rate": np.array([stats.acceptance_rate], dtype=np.float32),
    }


def stop_arrays(cancelled: bool) -> dict[str, Array]:
    """The answer to the `stop` control."""
    return {"cancelled": np.array([cancelled])}


def input_id_arrays(token_ids: Sequence[int]) -> dict[str, Array]:
    """The answer of `swift_tokenizer`: input_ids INT32 [-1]."""
    return {"input_ids": np.array(token_ids, dtype=np.int32)}


def string_array(text: str) -> Array:
    """A STRING [1] tensor."""
    return np.array([text.encode()], dtype=np.object_)


def _sampling_params(inputs: Inputs) -> SamplingParams:
    """The keys of sampling_parameters and the request parameters; both may hold one, with the same value."""
    text = _string(inputs, "sampling_parameters")
    values = {} if text is None else _json_object("sampling_parameters", text)
    for key, value in _request_parameters(inputs).items():
        if values.get(key, value) != value:
            both = f"{values[key]!r} in sampling_parameters and {value!r} as a request parameter"
            raise InvalidRequest(key, f"{key} is given twice with different values: {both}")
        values.setdefault(key, value)
    if values.pop("logprobs", None) is not None:
        raise InvalidRequest("logprobs", "logprobs is not supported yet: leave it out")
    return SamplingParams.from_mapping(values)


def _request_parameters(inputs: Inputs) -> dict[str, Any]:
    """The request parameters that are ours."""
    values = _json_object("parameters", inputs.parameters() or "{}")
    ours = values.keys() - RESERVED_PARAMETERS
    return {key: value for key, value in values.items() if key in ours and not key.startswith(RESERVED_PREFIX)}


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
    messages = _json("messages", text)
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
        if not _is_unicode(value):
            raise InvalidRequest("messages", f"{name}.{key} holds half a surrogate pair, which is no text")


def _is_unicode(text: str) -> bool:
    """JSON escapes can spell lone surrogates, which no tokenizer takes."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _json_object(name: str, text: str) -> dict[str, Any]:
    value = _json(name, text)
    if not isinstance(value, dict):
        raise InvalidRequest(name, f"{name} must be a JSON object, got {type(value).__name__}")
    return value


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(name, f"{name} is not valid JSON: {error}") from None
