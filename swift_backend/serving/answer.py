"""What do we answer? Pure conversions of the engine's outputs to tensors, without Triton."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from swift_backend.sequence import Output, TokenLogprob
from swift_backend.serving.tensors import Array

# Stands for the logarithm of 0, which JSON cannot spell; vLLM's number.
IMPOSSIBLE = -9999.0
DECIMALS = 6


def merge(outputs: Sequence[Output]) -> Output:
    """Consecutive outputs of one request as one: texts, ids and logprobs in a row, the rest as the last says."""
    return replace(
        outputs[-1],
        text="".join(output.text for output in outputs),
        token_ids=tuple(token for output in outputs for token in output.token_ids),
        logprobs=tuple(one for output in outputs for one in output.logprobs),
    )


def output_arrays(output: Output, token_text: Callable[[int], str] | None = None) -> dict[str, Array]:
    """The ten outputs of one response; each has shape [1] but output_ids, which has one element a token.

    token_text: how a token reads; given only where the client asked for logprobs.
    """
    stats = output.stats
    logprobs = "" if token_text is None else logprobs_json(output.logprobs, token_text)
    return {
        "text_output": string_array(output.text),
        "output_ids": np.array(output.token_ids, dtype=np.int32),
        "finish_reason": string_array(output.finish_reason),
        "num_input_tokens": np.array([output.num_prompt_tokens], dtype=np.uint32),
        "num_output_tokens": np.array([len(output.token_ids)], dtype=np.uint32),
        "cumulative_logprob": np.array([_finite(output.cumulative_logprob)], dtype=np.float32),
        "logprobs": string_array(logprobs),
        "total_draft_tokens": np.array([stats.draft_tokens], dtype=np.int32),
        "total_accepted_draft_tokens": np.array([stats.accepted_draft_tokens], dtype=np.int32),
        "acceptance_rate": np.array([stats.acceptance_rate], dtype=np.float32),
    }


def logprobs_json(logprobs: Sequence[TokenLogprob], token_text: Callable[[int], str]) -> str:
    """One object for each token, in order: {token_id, logprob, token, top: [{token_id, logprob, token}]}."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {"token_id": token_id, "logprob": round(_finite(logprob), DECIMALS), "token": token_text(token_id)}

    rows = [{**entry(one.token_id, one.logprob), "top": [entry(*other) for other in one.top]} for one in logprobs]
    return json.dumps(rows, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def stop_arrays(cancelled: bool) -> dict[str, Array]:
    """The answer to the `stop` control."""
    return {"cancelled": np.array([cancelled])}


def input_id_arrays(token_ids: Sequence[int]) -> dict[str, Array]:
    """The answer of `swift_tokenizer`: input_ids INT32 [-1]."""
    return {"input_ids": np.array(token_ids, dtype=np.int32)}


def string_array(text: str) -> Array:
    """A STRING [1] tensor."""
    return np.array([text.encode()], dtype=np.object_)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else IMPOSSIBLE
