"""The requests of clients that know the vLLM backend, written out; for the fast tests and those at a server."""

from __future__ import annotations

import json
from typing import Any

# sampling_parameters of Triton's OpenAI frontend: the OpenAI request without what is None, by release.
CHAT: list[dict[str, Any]] = [
    {"frequency_penalty": 0.0, "n": 1, "presence_penalty": 0.0, "temperature": 1.0, "top_p": 1.0, "max_tokens": 16},
    {
        "frequency_penalty": 0.0, "logprobs": False, "n": 1, "presence_penalty": 0.0, "temperature": 1.0, "top_p": 1.0,
        "max_tokens": 16,
    },
    {
        "frequency_penalty": 0.0, "n": 1, "presence_penalty": 0.0, "temperature": 1.0, "top_p": 1.0, "seed": 7,
        "stop": ["w9"], "max_tokens": 16, "logprobs": 2,
    },
    {"frequency_penalty": 0.5, "n": 1, "presence_penalty": -0.5, "temperature": 0.7, "top_p": 0.9, "stop": "w9",
     "max_tokens": 16},
]  # fmt: skip
COMPLETIONS: list[dict[str, Any]] = [
    {"frequency_penalty": 0.0, "n": 1, "presence_penalty": 0.0, "temperature": 1.0, "top_p": 1.0, "max_tokens": 16},
    {
        "best_of": 1, "frequency_penalty": 0.0, "n": 1, "presence_penalty": 0.0, "temperature": 1.0, "top_p": 1.0,
        "max_tokens": 16,
    },
    {"best_of": 1, "frequency_penalty": 0.0, "logprobs": 1, "n": 1, "presence_penalty": 0.0, "seed": 3,
     "stop": ["w9", "w8"], "temperature": 0.0, "top_p": 1.0, "max_tokens": 16},
]  # fmt: skip
VLLM_EXTRAS: list[dict[str, Any]] = [
    {"n": 1, "temperature": 1.0, "top_p": 1.0, "min_tokens": 5, "ignore_eos": True, "max_tokens": 16},
    {"temperature": 0.8, "top_k": -1, "min_p": 0.05, "repetition_penalty": 1.1, "max_tokens": 16},
    {"stop_token_ids": [9], "include_stop_str_in_output": True, "skip_special_tokens": True, "max_tokens": 16},
    {"logit_bias": {"9": -100, "8": 1.5}, "bad_words": ["w7"], "max_tokens": 16},
]
# perf_analyzer's --input-data file, as genai-perf writes it for vLLM-style models.
PERF_ANALYZER: dict[str, list[dict[str, list[Any]]]] = {
    "data": [
        {
            "text_input": ["w3 w4"],
            "stream": [True],
            "sampling_parameters": ['{"max_tokens":"40","temperature":"0","ignore_eos":"true"}'],
            "exclude_input_in_output": [True],
        },
        {
            "text_input": ["w5"],
            "stream": [False],
            "sampling_parameters": [
                '{"max_tokens": "12", "min_tokens": "12", "temperature": "0.1", "top_p": "0.95", "top_k": "5",'
                ' "ignore_eos": "true", "seed": "3"}'
            ],
            "exclude_input_in_output": [True],
        },
    ]
}


def frontend_inputs(prompt: str, sampling: dict[str, Any], echo: bool = False, **flags: bool) -> dict[str, Any]:
    """The tensors that the OpenAI frontend's vLLM encoder makes of a request; flags: stream, return_logprobs."""
    return {
        "text_input": prompt,
        "stream": flags.get("stream", False),
        "exclude_input_in_output": not echo,
        "sampling_parameters": json.dumps(sampling),
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "return_logprobs": flags.get("return_logprobs", False),
    }


def sampling_of(entry: dict[str, list[Any]]) -> dict[str, str]:
    """The sampling parameters of one perf_analyzer entry."""
    parsed: dict[str, str] = json.loads(entry["sampling_parameters"][0])
    return parsed
