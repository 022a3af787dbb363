"""Logprobs are the full model's own, for every emitted token, whether it was drafted or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_backend import SamplingParams, SwiftLLM
from swift_backend.logprobs import token_logprobs
from swift_backend.sequence import TokenLogprob

PROMPTS = [[5, 6, 7], [9] * 20, [3, 60, 2, 41]]


@pytest.fixture(scope="module")
def llm(tiny_model: Callable[[str], Path]) -> SwiftLLM:
    options: dict[str, Any] = {"dtype": "float32", "debug": True, "skip_ratio": 0.4, "kv_cache_tokens": 4096}
    return SwiftLLM(str(tiny_model("llama")), **options)


@pytest.mark.parametrize("speculation", ["off", "fixed"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.2, "seed": 4},
        {"temperature": 0.8, "seed": 5, "top_k": 4, "repetition_penalty": 1.5, "logit_bias": {9: 5.0}},
    ],
)
def test_they_are_transformers_log_softmax(
    llm: SwiftLLM, tiny_model: Callable[[str], Path], speculation: str, options: dict[str, Any]
) -> None:
    """Of the logits before penalties, bias and temperature, like vLLM's."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float32).eval()
    common: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True, "logprobs": 4, "confidence_threshold": 0.0}
    params = SamplingParams(speculation=speculation, **common, **options)
    for prompt, out in zip(PROMPTS, llm.generate(PROMPTS, params), strict=True):
        ids = torch.tensor([[*prompt, *out.token_ids]])
        with torch.no_grad():
            rows = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1].double(), dim=-1)
        assert [one.token_id for one in out.logprobs] == out.token_ids
        best = rows.topk(4, dim=-1)
        assert [[token for token, _ in one.top] for one in out.logprobs] == best.indices.tolist()
        values = torch.tensor([[value for _, value in one.top] for one in out.logprobs], dtype=torch.float64)
        torch.testing.assert_close(values, best.values, atol=1e-4, rtol=0)
        chosen = torch.tensor([one.logprob for one in out.logprobs], dtype=torch.float64)
        torch.testing.assert_close(chosen, rows.gather(1, ids[0, len(prompt) :, None]).squeeze(1), atol=1e-4, rtol=0)
        assert out.cumulative_logprob == pytest.approx(float(chosen.sum()), abs=1e-3)


def test_without_the_key_there_are_none(llm: SwiftLLM) -> None:
    [out] = llm.generate([PROMPTS[0]], SamplingParams(max_tokens=4))
    assert (out.logprobs, out.cumulative_logprob) == ((), 0.0)


def test_zero_asks_for_the_tokens_own_only(llm: SwiftLLM) -> None:
    [out] = llm.generate([PROMPTS[0]], SamplingParams(max_tokens=4, logprobs=0))
    assert len(out.logprobs) == len(out.token_ids)
    assert all(one.top == () and one.logprob < 0 for one in out.logprobs)


def test_streamed_sums_run_up(llm: SwiftLLM) -> None:
    deltas = list(llm.stream(PROMPTS[1], SamplingParams(max_tokens=9, logprobs=1, speculation="fixed")))
    total = 0.0
    for delta in deltas:
        assert len(delta.logprobs) == len(delta.token_ids)
        total += sum(one.logprob for one in delta.logprobs)
        assert delta.cumulative_logprob == pytest.approx(total)


def test_ties_go_to_the_lowest_id_and_a_small_vocabulary_has_fewer() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.2, 0.2, 0.4], [0.25, 0.25, 0.25, 0.25]]))
    first, second = token_logprobs(logits, [1, 3], 3)
    assert first == TokenLogprob(1, pytest.approx(-1.609438), ((3, pytest.approx(-0.916291)), *tied(0, 1, p=-1.609438)))
    assert second == TokenLogprob(3, pytest.approx(-1.386294), tied(0, 1, 2, p=-1.386294))
    assert [len(one.top) for one in token_logprobs(logits, [0, 0], 20)] == [4, 4]


def tied(*ids: int, p: float) -> tuple[Any, ...]:
    return tuple((token, pytest.approx(p)) for token in ids)
