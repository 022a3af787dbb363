"""Options at the edge of what is allowed: they hurt nobody else, and the engine goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swift_backend import InvalidRequest, SamplingParams, SwiftLLM
from tests.conftest import change_config, save_tiny_model, save_word_tokenizer, tiny_config

GOOD = [3, 4, 5]
EXTREMES: list[dict[str, Any]] = [
    {"repetition_penalty": 1e-300},
    {"repetition_penalty": 1e-38, "logit_bias": {3: 100.0, 7: -100.0}},
    {"repetition_penalty": 1e-45, "presence_penalty": 2.0, "frequency_penalty": -2.0},
    {"logit_bias": dict.fromkeys(range(300), -100.0)},
    {"bad_words": [f"w{i}" for i in range(300)]},
    {"stop_token_ids": list(range(300)), "min_tokens": 6},
    {"logprobs": 20, "repetition_penalty": 1e-300},
    {"frequency_penalty": -2.0, "top_k": 299},
]
FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 1e-300, "top_p": 1e-300},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 5.0, "min_p": 0.1},
    {"temperature": 0.7, "top_k": 3, "top_p": 0.5, "min_p": 1.0},
]


@pytest.fixture(scope="module", params=["coupled", "rejection"])
def llm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> SwiftLLM:
    """A vocabulary above 256, where survivors are looked for among a few candidates first."""
    directory = save_tiny_model(tmp_path_factory.mktemp("hostile"), tiny_config("llama", vocab_size=300))
    return load(directory, acceptance=request.param)


def load(directory: Path, **options: Any) -> SwiftLLM:
    options = {"dtype": "float32", "debug": True, "skip_ratio": 0.4, "kv_cache_tokens": 2048, **options}
    return SwiftLLM(str(directory), **options)


@pytest.mark.parametrize("filters", FILTERS)
def test_extremes_end_like_any_request(llm: SwiftLLM, filters: dict[str, Any]) -> None:
    common: dict[str, Any] = {"max_tokens": 6, "seed": 1, "confidence_threshold": 0.0, "ignore_eos": True}
    good = SamplingParams(speculation="off", **common)
    [expected] = llm.generate([GOOD], good)
    for mode in ("off", "fixed"):
        odd = [SamplingParams(speculation=mode, **{**common, **extreme, **filters}) for extreme in EXTREMES]
        outputs = llm.generate([GOOD] * (len(odd) + 1), [good, *odd])
        assert outputs[0].token_ids == expected.token_ids
        assert all(1 <= len(out.token_ids) <= 6 and out.finish_reason in ("stop", "length") for out in outputs)
        assert all(abs(one.logprob) < 1e4 for out in outputs for one in out.logprobs)


def test_a_tokenizer_may_know_more_ids_than_the_model(tmp_path: Path) -> None:
    directory = save_tiny_model(tmp_path / "model", tiny_config("llama"))
    save_word_tokenizer(directory, 80)
    [out] = load(directory).generate([GOOD], SamplingParams(max_tokens=4, bad_words=["w70", "w7 w70", "w9"]))
    assert out.finish_reason in ("stop", "length") and 9 not in out.token_ids


def test_an_eos_id_may_be_beyond_the_vocabulary(tmp_path: Path) -> None:
    directory = save_tiny_model(tmp_path / "model", tiny_config("llama"))
    change_config(directory, eos_token_id=[1, 99])
    (directory / "generation_config.json").unlink(missing_ok=True)
    [out] = load(directory).generate([GOOD], SamplingParams(max_tokens=4, min_tokens=3))
    assert len(out.token_ids) >= 3


def test_what_does_not_fit_the_cache_is_told_by_its_own_name(tiny_model: Callable[[str], Path]) -> None:
    small = load(tiny_model("llama"), kv_cache_tokens=100)
    with pytest.raises(InvalidRequest, match="input_ids must hold at most 99 tokens, got 150"):
        small.generate([[3] * 150])
    with pytest.raises(InvalidRequest, match=r"max_tokens must be in \[1, 80\], got 81"):
        small.generate([[3] * 20], SamplingParams(max_tokens=81))
    assert len(small.generate([[3] * 20], SamplingParams(max_tokens=80, ignore_eos=True))[0].token_ids) == 80


@pytest.mark.parametrize("prompt", ["\ud800", "w3 \udfff"])
def test_half_a_surrogate_pair_is_no_prompt(tiny_model: Callable[[str], Path], prompt: str) -> None:
    with pytest.raises(InvalidRequest, match="prompts"):
        load(tiny_model("llama")).generate([prompt])


def test_long_bad_words_are_spelled_in_no_time(tiny_model: Callable[[str], Path]) -> None:
    """Quadratic work on Triton's own thread would keep everybody out: 12 seconds for 96 kB once."""
    words = load(tiny_model("llama")).engine.tokenizer.bad_word_ids(["w3 w4 " * 30_000, "w5"])
    assert min(map(len, words)) == 1
