"""The default model behind a real tritonserver: streams, whole answers, errors and many clients at once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.grpc_stream import Chunk, GrpcStream, StreamError
from swift_backend.serving.server_process import RunningServer, running_server

pytestmark = [pytest.mark.server, pytest.mark.model, pytest.mark.timeout(600)]

PROMPT = "The history of the printing press began"
TOKENS = 40
OUTPUTS = {
    "text_output", "output_ids", "finish_reason", "num_input_tokens", "num_output_tokens", "cumulative_logprob",
    "logprobs", "total_draft_tokens", "total_accepted_draft_tokens", "acceptance_rate",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(smollm2_float32: Path) -> Iterator[RunningServer]:
    """float32, so that answers are exact; debug, so that every step checks the engine's invariants."""
    environment = {"SWIFT_MODEL": str(smollm2_float32), "SWIFT_DTYPE": "float32", "SWIFT_DEBUG": "true"}
    with running_server(environment=environment, exit_timeout=30) as running:
        yield running


@pytest.fixture(scope="module")
def grpc_stream(server: RunningServer) -> Iterator[GrpcStream]:
    stream = GrpcStream(server.grpc_target)
    yield stream
    stream.close()


def generate(server: RunningServer, body: dict[str, Any], path: str = "swift/generate") -> httpx.Response:
    return httpx.post(f"{server.http_url}/v2/models/{path}", json=body, timeout=120, trust_env=False)


def body(**changes: Any) -> dict[str, Any]:
    return {"text_input": PROMPT, "max_tokens": TOKENS, "speculation": "fixed", "confidence_threshold": 0.3, **changes}


def sse(server: RunningServer, request: dict[str, Any]) -> list[dict[str, Any]]:
    url = f"{server.http_url}/v2/models/swift/generate_stream"
    with httpx.stream("POST", url, json=request, timeout=120, trust_env=False) as response:
        return [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.outputs["text_output"] for chunk in chunks)


def test_deltas_add_up_to_the_whole_text_over_both_protocols(server: RunningServer, grpc_stream: GrpcStream) -> None:
    whole = generate(server, body()).json()
    deltas = sse(server, body(stream=True))
    parameters = {"max_tokens": TOKENS, "speculation": "fixed", "confidence_threshold": 0.3}
    chunks = list(grpc_stream.stream("swift", {"text_input": PROMPT, "stream": True}, parameters))
    once = list(grpc_stream.stream("swift", {"text_input": PROMPT}, parameters))
    assert len(deltas) > 5 and len(chunks) > 5 and len(once) == 1
    assert "".join(d["text_output"] for d in deltas) == text_of(chunks) == text_of(once) == whole["text_output"] != ""
    assert [t for c in chunks for t in c.outputs["output_ids"]] == whole["output_ids"] == once[0].outputs["output_ids"]
    assert sum(c.outputs["num_output_tokens"] for c in chunks) == whole["num_output_tokens"] == TOKENS


def test_the_last_response_carries_final_reason_and_totals(grpc_stream: GrpcStream) -> None:
    parameters = {"max_tokens": TOKENS, "speculation": "fixed", "confidence_threshold": 0.0}
    chunks = list(grpc_stream.stream("swift", {"text_input": PROMPT, "stream": True}, parameters))
    assert [c.final for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [c.outputs["finish_reason"] for c in chunks] == [""] * (len(chunks) - 1) + ["length"]
    assert all(set(c.outputs) == OUTPUTS for c in chunks)
    last = chunks[-1].outputs
    assert last["output_ids"]
    assert 0 < last["total_accepted_draft_tokens"] < last["total_draft_tokens"]
    rate = last["total_accepted_draft_tokens"] / last["total_draft_tokens"]
    assert last["acceptance_rate"] == pytest.approx(rate, abs=1e-6)
    assert last["num_input_tokens"] == 7


def test_the_first_delta_comes_long_before_the_last(grpc_stream: GrpcStream) -> None:
    started = time.monotonic()
    parameters = {"max_tokens": 60, "ignore_eos": True, "speculation": "off"}
    chunks = list(grpc_stream.stream("swift", {"text_input": PROMPT, "stream": True}, parameters))
    first, last = chunks[0].at - started, chunks[-1].at - started
    assert first < last / 3, (first, last)


def test_eight_streams_at_once_equal_their_solo_runs(
    grpc_stream: GrpcStream, shared_prompts: list[dict[str, Any]]
) -> None:
    texts = [row["turns"][0][:1500] for row in shared_prompts[:8]]
    modes = ["off", "fixed"] * 4

    def answer(job: tuple[str, str]) -> tuple[str, list[int]]:
        parameters = {"max_tokens": 24, "speculation": job[1], "confidence_threshold": 0.2}
        chunks = list(grpc_stream.stream("swift", {"text_input": job[0], "stream": True}, parameters))
        return text_of(chunks), [t for c in chunks for t in c.outputs["output_ids"]]

    jobs = list(zip(texts, modes, strict=True))
    alone = [answer(job) for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(answer, jobs)) == alone


def test_speculation_changes_no_token_greedy_or_seeded(server: RunningServer) -> None:
    for sampling in ({}, {"temperature": 0.9, "top_p": 0.95, "seed": 11}):
        off, fixed = (generate(server, body(speculation=mode, **sampling)).json() for mode in ("off", "fixed"))
        assert off["output_ids"] == fixed["output_ids"]
        assert off["total_draft_tokens"] == 0 < fixed["total_draft_tokens"]


def test_messages_use_the_chat_template_and_sampling_parameters_the_same_keys(server: RunningServer) -> None:
    messages = json.dumps([{"role": "user", "content": "What is 2+2? Answer briefly."}])
    request = {"messages": messages, "sampling_parameters": json.dumps({"max_tokens": 60, "stop": ["\n"]})}
    answer = generate(server, request).json()
    assert answer["finish_reason"] == "stop"
    assert "4" in answer["text_output"]
    assert "<|im_end|>" not in answer["text_output"]


def test_the_prompt_comes_back_only_if_asked_for(server: RunningServer) -> None:
    answer = generate(server, body(max_tokens=5)).json()["text_output"]
    assert generate(server, body(max_tokens=5, exclude_input_in_output=False)).json()["text_output"] == PROMPT + answer


def test_a_subset_of_outputs(grpc_stream: GrpcStream) -> None:
    """triton-inference-server/server#7482 hung here."""
    chunks = list(
        grpc_stream.stream("swift", {"text_input": PROMPT}, {"max_tokens": 3}, outputs=["text_output", "finish_reason"])
    )
    assert [set(c.outputs) for c in chunks] == [{"text_output", "finish_reason"}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"temperature": 7.5}, "temperature must be in [0, 5], got 7.5"),
        ({"max_tokens": 0}, "max_tokens must be in [1, 2147483647], got 0"),
        ({"speculation": "on"}, "speculation must be one of"),
        ({"temprature": 1}, "did you mean temperature?"),
        ({"max_draft_tokens": 50}, "max_draft_tokens must be in [0, 15], got 50"),
        ({"sampling_parameters": "{"}, "sampling_parameters"),
        ({"messages": "[]"}, "text_input"),
        ({"text_input": "word " * 9000}, "8191"),
    ],
)
def test_a_wrong_request_is_a_400_that_names_the_field(
    server: RunningServer, changes: dict[str, Any], said: str
) -> None:
    response = generate(server, body(**changes))
    assert response.status_code == 400
    assert said in response.json()["error"]
    assert generate(server, body(max_tokens=1)).status_code == 200


def test_a_wrong_request_over_grpc_is_one_message_that_names_the_field(grpc_stream: GrpcStream) -> None:
    with pytest.raises(StreamError, match=r"top_p must be in \(0, 1\], got 2.0$"):
        list(grpc_stream.stream("swift", {"text_input": PROMPT}, {"top_p": 2.0}))


def test_cancelling_the_stream_frees_the_decoder(grpc_stream: GrpcStream, server: RunningServer) -> None:
    call = grpc_stream.call(
        "swift_decoder", {"input_ids": [5, 6, 7], "stream": True}, {"max_tokens": 4000, "ignore_eos": True}
    )
    next(iter(call))
    call.cancel()
    started = time.monotonic()
    generate(server, body(max_tokens=4, speculation="off"))
    assert time.monotonic() - started < 5


def test_stop_ends_an_ensemble_request_that_is_generating(grpc_stream: GrpcStream, server: RunningServer) -> None:
    chunks: list[Chunk] = []
    parameters = {"max_tokens": 4000, "ignore_eos": True}

    def run() -> None:
        chunks.extend(
            grpc_stream.stream("swift", {"text_input": PROMPT, "stream": True}, parameters, request_id="story-1")
        )

    reader = threading.Thread(target=run)
    reader.start()
    time.sleep(1.5)
    stopped = generate(server, {"input_ids": [0], "stop": True, "id": "story-1"}, "swift_decoder/generate")
    assert stopped.json()["cancelled"] is True
    reader.join(10)
    assert not reader.is_alive()
    assert chunks[-1].outputs["finish_reason"] == "cancelled"
    unknown = generate(server, {"input_ids": [0], "stop": True, "id": "story-1"}, "swift_decoder/generate")
    assert unknown.json()["cancelled"] is False
