"""Which options does a generation have? Types only: what each may hold, the server says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from swift_client.core.timeout import TimeoutTypes

Speculation = Literal["auto", "skip", "ngram", "similarity", "search", "static", "fixed", "lookahead", "off"]


class Message(TypedDict):
    """One turn of a chat."""

    role: str
    content: str


class SamplingOptions(TypedDict, total=False):
    """The server's sampling keys; one that is left out, or None, has the server's default."""

    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    bad_words: Sequence[str] | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    include_stop_str_in_output: bool | None
    skip_special_tokens: bool | None
    seed: int | None
    logprobs: int | None
    speculation: Speculation | None
    max_draft_tokens: int | None
    confidence_threshold: float | None
    timeout_ms: int | None


class CallOptions(SamplingOptions, total=False):
    """What a call may say beside its prompt.

    request_id: the request's name at the server, a fresh uuid4 if left out. timeout: a Timeout, a number (the total),
    or None for no limit. exclude_input_in_output: False has the text begin with the prompt.
    """

    request_id: str
    timeout: TimeoutTypes
    exclude_input_in_output: bool


class GenerateOptions(CallOptions, total=False):
    """What generate and stream may say beside, or instead of, a prompt text: exactly one prompt is needed.

    messages: a chat; the model's template is applied. input_ids: token ids, which go straight to the decoder model.
    """

    messages: Sequence[Message]
    input_ids: Sequence[int]


OTHER_OPTIONS = frozenset({"request_id", "timeout", "exclude_input_in_output", "messages", "input_ids"})


def sampling_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling keys that were given, as JSON takes them; unknown ones too, for the server to refuse."""
    given = {name: value for name, value in options.items() if name not in OTHER_OPTIONS and value is not None}
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    # A numpy number or array, without asking for numpy.
    return value.tolist() if hasattr(value, "tolist") else value
