"""What clients of Triton's vLLM backend send means the same to us: the requests of tests/server, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swift_backend.params import SamplingParams
from swift_backend.serving.tensors import Call, read_call, read_prompt
from swift_backend.serving.triton_request import TritonRequest
from tests.serving.vllm_clients import CHAT, COMPLETIONS, PERF_ANALYZER, VLLM_EXTRAS, frontend_inputs


def call(triton: Any, inputs: dict[str, Any]) -> Call:
    """The request as `swift_decoder` sees it: without the prompt's text, with its ids."""
    ours = {name: value for name, value in inputs.items() if name != "text_input"}
    return read_call(TritonRequest(triton.request(decoupled=False, input_ids=[3, 4], **ours)))


@pytest.mark.parametrize("sampling", [*CHAT, *COMPLETIONS, *VLLM_EXTRAS], ids=json.dumps)
def test_the_openai_frontends_keys_mean_what_they_say(triton: Any, sampling: dict[str, Any]) -> None:
    given = call(triton, frontend_inputs("w3 w4", sampling, stream=True))
    ours = {key: value for key, value in sampling.items() if key not in ("n", "best_of") and value is not False}
    assert given == Call([3, 4], SamplingParams(**ours), stream=True, exclude_input=True)


def test_the_frontends_first_chat_request_is_sampling_at_temperature_one(triton: Any) -> None:
    assert call(triton, frontend_inputs("x", CHAT[1])).params == SamplingParams(max_tokens=16, temperature=1.0)


def test_the_frontends_flags_are_read(triton: Any) -> None:
    echoed = call(triton, frontend_inputs("x", CHAT[0], echo=True, return_logprobs=True))
    assert (echoed.exclude_input, echoed.stream, echoed.params.logprobs) == (False, False, 0)
    assert call(triton, frontend_inputs("x", CHAT[2], return_logprobs=True)).params.logprobs == 2


def test_the_frontends_prompt_is_taken_as_it_is(triton: Any) -> None:
    request = triton.request(decoupled=False, **frontend_inputs("Hi\n", CHAT[0]))
    assert read_prompt(TritonRequest(request)) == "Hi\n"


def test_perf_analyzers_strings_are_numbers(triton: Any) -> None:
    calls = [call(triton, {name: values[0] for name, values in entry.items()}) for entry in PERF_ANALYZER["data"]]
    assert [given.params for given in calls] == [
        SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True),
        SamplingParams(
            max_tokens=12, min_tokens=12, temperature=0.1, top_p=0.95, top_k=5, ignore_eos=True, seed=3
        ),
    ]  # fmt: skip
    assert [given.stream for given in calls] == [True, False]
