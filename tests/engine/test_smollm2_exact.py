"""The default model answers exactly as transformers does, whatever the speculation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swift_backend import SamplingParams, SwiftLLM

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

MAX_TOKENS = 24
NUM_DATA_PROMPTS = 10


@pytest.fixture(scope="module")
def llm(smollm2_float32: Path) -> SwiftLLM:
    return SwiftLLM(str(smollm2_float32), dtype="float32", debug=True, kv_cache_tokens=16384, limit_drafts=False)


@pytest.fixture(scope="module")
def prompts(llm: SwiftLLM, shared_prompts: list[dict[str, Any]]) -> list[list[int]]:
    """14 real prompts, raw and chat in turn, from 1 token to 1,500."""
    tokenizer = llm.engine.tokenizer
    texts = [row["turns"][0] for row in shared_prompts]
    made = []
    for number, text in enumerate(texts[:NUM_DATA_PROMPTS]):
        ids = tokenizer.encode_chat([{"role": "user", "content": text}]) if number % 2 else tokenizer.encode(text)
        made.append(ids[:700])
    long = tokenizer.encode("\n\n".join(texts[NUM_DATA_PROMPTS : NUM_DATA_PROMPTS + 60]))
    return [*made, long[:1], long[:2], long[:1000], long[:1500]]


@pytest.fixture(scope="module")
def expected(
    prompts: list[list[int]], smollm2_float32: Path, transformers_greedy: Callable[[Path, list[int], int], list[int]]
) -> list[list[int]]:
    return [transformers_greedy(smollm2_float32, prompt, MAX_TOKENS) for prompt in prompts]


def ids(llm: SwiftLLM, prompts: list[list[int]], **params: Any) -> list[list[int]]:
    return [out.token_ids for out in llm.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS, **params))]


def test_plain_decoding_alone(llm: SwiftLLM, prompts: list[list[int]], expected: list[list[int]]) -> None:
    assert [ids(llm, [prompt], speculation="off")[0] for prompt in prompts] == expected


@pytest.mark.parametrize(("threshold", "every"), [(None, 1), (0.0, 3)])
def test_drafting_alone(
    llm: SwiftLLM, prompts: list[list[int]], expected: list[list[int]], threshold: float | None, every: int
) -> None:
    """With the guide's confidence threshold, and, for some prompts, with every draft at full length."""
    some = prompts[::every]
    answers = [ids(llm, [p], speculation="fixed", confidence_threshold=threshold)[0] for p in some]
    assert answers == expected[::every]


@pytest.mark.parametrize("speculation", ["off", "fixed"])
def test_in_batches_of_eight(
    llm: SwiftLLM, prompts: list[list[int]], expected: list[list[int]], speculation: str
) -> None:
    """Mixed lengths, and the prompts behind the first eight are admitted while others run."""
    narrow = SwiftLLM(
        dtype="float32",
        model=str(llm.engine.model.directory),
        debug=True,
        max_running=8,
        kv_cache_tokens=8192,
        limit_drafts=False,
    )
    assert ids(narrow, prompts, speculation=speculation, confidence_threshold=0.5) == expected


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.7}, {"temperature": 1.0, "top_p": 0.9}, {"temperature": 1.0, "top_k": 50}]
)
def test_seeded_sampling_is_the_same_with_and_without_drafts(
    llm: SwiftLLM, prompts: list[list[int]], sampling: dict[str, Any]
) -> None:
    some = prompts[:6]
    off = ids(llm, some, speculation="off", seed=1, **sampling)
    assert ids(llm, some, speculation="fixed", seed=1, confidence_threshold=0.3, **sampling) == off
    assert ids(llm, some[:1], speculation="fixed", seed=1, confidence_threshold=0.3, **sampling) == off[:1]
    assert ids(llm, some, speculation="off", seed=2, **sampling) != off


def test_chat_stops_at_the_end_of_the_turn(llm: SwiftLLM) -> None:
    out = llm.chat([{"role": "user", "content": "What is 2+2? Answer briefly."}], SamplingParams(max_tokens=60))
    assert out.finish_reason == "stop"
    assert out.token_ids[-1] in llm.engine.runner.decoder.config.eos_ids
    assert "4" in out.text
    assert "<|im_end|>" not in out.text
