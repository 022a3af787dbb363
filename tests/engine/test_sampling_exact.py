"""Sampled tokens are the full model's own: the same with and without drafts, alone and in a batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from swift_backend import SamplingParams
from swift_backend.speculation.layer_set import LayerSet
from tests.conftest import TINY_VOCABULARY
from tests.engine.scripted_drafts import load

SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.4, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 30, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 0.0},
]


def requests(speculation: str, count: int = 30) -> tuple[list[list[int]], list[SamplingParams]]:
    rng = random.Random(5)
    prompts = [[rng.randrange(2, TINY_VOCABULARY) for _ in range(rng.randrange(1, 40))] for _ in range(count)]
    params = [
        SamplingParams(max_tokens=24, seed=n, speculation=speculation, confidence_threshold=0.0, **SETTINGS[n % 5])  # type: ignore[arg-type]
        for n in range(count)
    ]
    return prompts, params


@pytest.mark.parametrize("architecture", ["llama", pytest.param("qwen3", marks=pytest.mark.slow)])
def test_seeded_output_does_not_depend_on_speculation_or_batch(
    tiny_model: Callable[[str], Path], architecture: str
) -> None:
    """Mixed greedy and sampled rows too (vLLM #9441, PR #13933)."""
    llm = load(tiny_model(architecture))
    prompts, params = requests("off")
    expected = [llm.generate([p], one)[0].token_ids for p, one in zip(prompts, params, strict=True)]
    assert [out.token_ids for out in llm.generate(prompts, params)] == expected
    drafting = llm.generate(*requests("fixed"))
    assert [out.token_ids for out in drafting] == expected
    drafted = sum(out.stats.draft_tokens for out in drafting)
    accepted = sum(out.stats.accepted_draft_tokens for out in drafting)
    assert 0 < accepted < drafted


def test_seeds_matter(tiny_model: Callable[[str], Path]) -> None:
    """vLLM #6038: the same seed gives the same answer, another seed another, none a fresh one each time."""
    llm = load(tiny_model("llama"))
    prompt = [5, 6, 7]

    def answer(seed: int | None) -> list[int]:
        return llm.generate([prompt], SamplingParams(max_tokens=20, temperature=1.0, seed=seed))[0].token_ids

    assert answer(42) == answer(42)
    assert len({tuple(answer(seed)) for seed in (42, 43, None, None)}) == 4


def test_rejection_equals_plain_decoding_at_temperature_zero(tiny_model: Callable[[str], Path]) -> None:
    """The guide's listing is lossless here only; ours must be here too."""
    prompts, _ = requests("off")
    plain = SamplingParams(max_tokens=24, speculation="off")
    drafting = SamplingParams(max_tokens=24, speculation="fixed", confidence_threshold=0.0)
    llm = load(tiny_model("qwen2"), acceptance="rejection")
    expected = [out.token_ids for out in llm.generate(prompts, plain)]
    assert [out.token_ids for out in llm.generate(prompts, drafting)] == expected


def test_rejection_with_nothing_skipped_accepts_everything(tiny_model: Callable[[str], Path]) -> None:
    """Draft = target: the residual is empty and every drafted token stays."""
    llm = load(tiny_model("llama"), acceptance="rejection")
    engine = llm.engine

    class KeepAll(LayerSet):
        def __bool__(self) -> bool:
            return True

    original = engine._receive

    def receive() -> None:
        original()
        for sequence in engine._running:
            sequence.layer_set = KeepAll(7)

    engine._receive = receive  # type: ignore[method-assign]
    outputs = llm.generate(
        [[4, 5, 6]],
        SamplingParams(
            max_tokens=25, temperature=1.0, seed=1, speculation="fixed", confidence_threshold=0.0, ignore_eos=True
        ),
    )
    assert outputs[0].stats.acceptance_rate == 1.0
    assert outputs[0].stats.draft_tokens == 20
