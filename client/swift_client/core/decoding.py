"""What does a response say? Its outputs as a chunk, each checked against the contract."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from swift_client.core.errors import ProtocolError
from swift_client.core.request import Response
from swift_client.core.results import Alternative, Chunk, FinishReason, SpeculationStats, TokenLogprob, Usage

_FINISH_REASONS: dict[str, FinishReason] = {reason: reason for reason in get_args(FinishReason)}
_T = TypeVar("_T")


def decode_chunk(response: Response, accepted_before: int) -> Chunk:
    """accepted_before: the accepted drafts that the responses so far told of. ProtocolError names what is wrong."""
    outputs = response.outputs
    reason = _get(outputs, "finish_reason", str)
    if reason and reason not in _FINISH_REASONS:
        raise ProtocolError(f"finish_reason must be one of {', '.join(_FINISH_REASONS)}, got {reason!r}")
    drafted = _get(outputs, "total_draft_tokens", int)
    accepted = _get(outputs, "total_accepted_draft_tokens", int)
    logprobs = _get(outputs, "logprobs", str)
    return Chunk(
        text=_get(outputs, "text_output", str),
        token_ids=tuple(_get(outputs, "output_ids", list)),
        finish_reason=_FINISH_REASONS[reason] if reason else None,
        accepted_draft_tokens=accepted - accepted_before,
        usage=Usage(_get(outputs, "num_input_tokens", int), _get(outputs, "num_output_tokens", int)),
        speculation=SpeculationStats(drafted, accepted),
        logprobs=_logprobs(logprobs) if logprobs else (),
        cumulative_logprob=float(_get(outputs, "cumulative_logprob", float)),
    )


def decode_stopped(response: Response) -> bool:
    """The answer to the stop control: whether there was such a request."""
    return _get(response.outputs, "cancelled", bool)


def _get(outputs: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
    try:
        value = outputs[name]
    except KeyError:
        raise ProtocolError(f"the response has no {name}: is this a SWIFT model?") from None
    if isinstance(value, kind) or (kind is float and isinstance(value, int)):
        return value  # type: ignore[return-value]  # a whole float of JSON is an int
    raise ProtocolError(f"{name} must be {kind.__name__}, got {value!r:.80}")


def _logprobs(text: str) -> tuple[TokenLogprob, ...]:
    try:
        return tuple(
            TokenLogprob(row["token_id"], row["logprob"], row["token"], tuple(Alternative(**one) for one in row["top"]))
            for row in json.loads(text)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"logprobs must be the contract's JSON: {error!r}") from None
