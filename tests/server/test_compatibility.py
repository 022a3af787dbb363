"""What clients of Triton's vLLM backend send, byte for byte as they send it, works unchanged.

The requests of Triton's OpenAI frontend (its vLLM encoder), perf_analyzer and genai-perf are written out.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from loadtest.grpc_stream import GrpcStream, chunks_of, request_of
from swift_backend.serving.server_process import RunningServer
from tests.serving.vllm_clients import CHAT, COMPLETIONS, PERF_ANALYZER, VLLM_EXTRAS, frontend_inputs, sampling_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

PROMPT = "w3 w4 w5"


def frontend(grpc_stream: GrpcStream, sampling: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What the OpenAI frontend makes of our responses; it insists on the datatypes that it reads by pointer."""
    request = request_of("swift", frontend_inputs(PROMPT, sampling, **changes))
    text, completion, prompt, finals, logprobs = "", 0, None, [], []
    for response in grpc_stream.send(request):
        assert not response.error_message
        message = response.infer_response
        kinds = {tensor.name: (tensor.datatype, list(tensor.shape)) for tensor in message.outputs}
        assert kinds["text_output"] == ("BYTES", [1])
        assert kinds["num_input_tokens"] == kinds["num_output_tokens"] == ("UINT32", [1])
        [chunk] = chunks_of([response])
        text += chunk.outputs["text_output"]
        completion += chunk.outputs["num_output_tokens"]
        prompt = chunk.outputs["num_input_tokens"]
        logprobs += json.loads(chunk.outputs["logprobs"] or "[]")
        finals.append(chunk.final)
    return {"text": text, "prompt": prompt, "completion": completion, "finals": finals, "logprobs": logprobs}


@pytest.mark.parametrize("sampling", [*CHAT, *COMPLETIONS, *VLLM_EXTRAS], ids=str)
def test_the_openai_frontends_requests_work_unchanged(tiny_stream: GrpcStream, sampling: dict[str, Any]) -> None:
    seeded = {"seed": 7, **sampling}
    whole = frontend(tiny_stream, seeded)
    deltas = frontend(tiny_stream, seeded, stream=True, return_logprobs=True)
    assert whole["finals"] == [True]
    assert deltas["finals"] == [False] * (len(deltas["finals"]) - 1) + [True]
    assert 0 < whole["completion"] <= sampling["max_tokens"] and whole["prompt"] == 3
    assert {**deltas, "finals": 0, "logprobs": 0} == {**whole, "finals": 0, "logprobs": 0}
    asked = type(sampling.get("logprobs")) is int
    assert len(whole["logprobs"]) == asked * whole["completion"]
    assert len(deltas["logprobs"]) == deltas["completion"]


def test_the_frontends_echo_puts_the_prompt_before_the_answer(tiny_stream: GrpcStream) -> None:
    plain = frontend(tiny_stream, COMPLETIONS[0] | {"seed": 1})["text"]
    assert frontend(tiny_stream, COMPLETIONS[0] | {"seed": 1}, echo=True)["text"] == PROMPT + plain


def test_a_frontends_logprobs_are_the_contracts(tiny_stream: GrpcStream) -> None:
    answer = frontend(tiny_stream, {"max_tokens": 4, "temperature": 0.0, "logprobs": 2})
    plain = frontend(tiny_stream, {"max_tokens": 4, "temperature": 0.0, "logprobs": False})
    assert (plain["text"], plain["logprobs"]) == (answer["text"], [])
    assert "".join(f" {entry['token']}" for entry in answer["logprobs"]) == answer["text"]
    for entry in answer["logprobs"]:
        chosen = {key: entry[key] for key in ("token_id", "logprob", "token")}
        assert len(entry["top"]) == 2 and entry["top"][0] == chosen  # greedy: the chosen one is the likeliest
        assert entry["top"][1]["logprob"] <= entry["logprob"] < 0


@pytest.mark.parametrize("entry", PERF_ANALYZER["data"], ids=json.dumps)
def test_perf_analyzers_json_inputs_work_unchanged(tiny_stream: GrpcStream, entry: dict[str, list[Any]]) -> None:
    """Every number in its sampling_parameters is a string."""
    chunks = list(tiny_stream.stream("swift", {name: values[0] for name, values in entry.items()}))
    count = int(sampling_of(entry)["max_tokens"])
    assert sum(chunk.outputs["num_output_tokens"] for chunk in chunks) == count
    assert len(chunks) > 1 if entry["stream"][0] else len(chunks) == 1


@pytest.mark.parametrize("entry", PERF_ANALYZER["data"], ids=json.dumps)
def test_genai_perfs_http_bodies_work_unchanged(tiny_server: RunningServer, entry: dict[str, list[Any]]) -> None:
    streaming = entry["stream"][0]
    url = f"{tiny_server.http_url}/v2/models/swift/generate{'_stream' * streaming}"
    for body in (entry, {name: values[0] for name, values in entry.items()}):
        response = httpx.post(url, json=body, timeout=60, trust_env=False)
        lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
        answers = [json.loads(line) for line in lines]
        assert response.status_code == 200
        count = int(sampling_of(entry)["max_tokens"])
        assert sum(answer["num_output_tokens"] for answer in answers) == count


def test_keys_at_the_top_of_a_generate_body_are_sampling_parameters(tiny_server: RunningServer) -> None:
    url = f"{tiny_server.http_url}/v2/models/swift/generate"
    body = {"text_input": PROMPT, "max_tokens": "6", "temperature": 0, "ignore_eos": True}
    answer = httpx.post(url, json=body, timeout=60, trust_env=False).json()
    assert answer["num_output_tokens"] == 6
    second = answer["text_output"].split()[1]
    stopped = httpx.post(url, json={**body, "stop": second}, timeout=60, trust_env=False).json()
    assert (stopped["finish_reason"], stopped["text_output"].split()) == ("stop", answer["text_output"].split()[:1])
