"""numerics="invariant": the same tokens and the same log-probabilities, to the bit, however they came about."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swift_backend import SamplingParams, SwiftLLM
from swift_backend.model import fused, linear, rowwise
from tests.conftest import TINY_VOCABULARY, save_tiny_model, tiny_config

MAX_TOKENS = 24
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "granite", "olmo2", "phi3", "gemma2", "gemma3_text", "gpt_neox")
WAYS: dict[str, dict[str, Any]] = {
    "fixed": {"confidence_threshold": 0.0},
    "auto": {},
    "skip": {},
    "lookahead": {},
}


@pytest.fixture(params=["ours", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With our own kernels, where they were built, and as on a machine that has none."""
    if request.param == "torch":
        for module in (rowwise, linear, fused):
            monkeypatch.setattr(module, "kernel", lambda: None)
    elif rowwise.kernel() is None:
        pytest.skip("our kernels are not for this CPU, or were not built")
    yield request.param


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(architecture: str) -> Path:
        if architecture not in made:
            config = tiny_config(architecture, num_hidden_layers=5)
            made[architecture] = save_tiny_model(tmp_path_factory.mktemp(architecture), config, draw_norms=True)
        return made[architecture]

    return get


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(2, TINY_VOCABULARY) for _ in range(length)] for length in (1, 7, 30, 90)]


def open_llm(model: Path, dtype: str, **options: Any) -> SwiftLLM:
    fixed = {"debug": True, "skip_ratio": 0.4, "kv_cache_tokens": 2048, "limit_drafts": False}
    return SwiftLLM(str(model), dtype, numerics="invariant", **{**fixed, **options})


def said(llm: SwiftLLM, asked: list[list[int]], params: SamplingParams) -> list[Any]:
    """Tokens and what they were worth; a difference in one bit of a logit shows."""
    found = []
    for out in llm.generate(asked, params):
        assert out.logprobs is not None
        found.append([(one.token_id, one.logprob) for one in out.logprobs])
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("architecture", "dtype"), [*((one, "bfloat16") for one in FAMILIES), ("llama", "int8"), ("qwen3", "float32")]
)
def test_every_way_says_the_same(
    directory: Callable[[str], Path], kernels: str, architecture: str, dtype: str, temperature: float
) -> None:
    """Alone and without drafts, with each drafter, in a batch, in small chunks, and with a prefix from the cache."""
    if kernels == "torch" and architecture not in ("llama", "mistral", "gemma2"):
        pytest.skip("torch's kernels are slow when each row is by itself: three families stand for all")
    params = SamplingParams(max_tokens=MAX_TOKENS, speculation="off", temperature=temperature, seed=9, logprobs=2)
    alone = open_llm(directory(architecture), dtype, prefix_cache=False)
    expected = [said(alone, [prompt], params)[0] for prompt in prompts()]
    assert said(alone, prompts(), params) == expected
    together = open_llm(directory(architecture), dtype, max_step_tokens=16)
    for way, changes in WAYS.items():
        assert said(together, prompts(), replace(params, speculation=way, **changes)) == expected, way
    drafted = together.engine.runner
    assert drafted.decoder.kernels.invariant


def test_without_it_torch_says_otherwise(directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test before could not fail: rows of a draft have other bits than the same tokens one by one."""
    for module in (rowwise, linear, fused):
        monkeypatch.setattr(module, "kernel", lambda: None)
    params = SamplingParams(max_tokens=MAX_TOKENS, speculation="off", logprobs=2)
    llm = SwiftLLM(str(directory("qwen3")), "float32", kv_cache_tokens=2048, limit_drafts=False, skip_ratio=0.4)
    drafted = replace(params, speculation="fixed", confidence_threshold=0.0)
    assert said(llm, prompts(), params) != said(llm, prompts(), drafted)


def test_int8_is_near_the_model_that_it_is_made_of(directory: Callable[[str], Path], kernels: str) -> None:
    params = SamplingParams(max_tokens=1, logprobs=2)
    plain, rounded = (said(open_llm(directory("llama"), dtype), prompts(), params) for dtype in ("bfloat16", "int8"))
    assert plain != rounded
    for one, other in zip(plain, rounded, strict=True):
        assert abs(one[0][1] - other[0][1]) < 0.5
