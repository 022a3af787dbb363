"""Both acceptance rules draw from the exact distribution, for every processor alone and for all together.

The exact one is worked out with transformers: a model of 12 tokens, all 1,728 beginnings of an answer, every processor
applied to each; then the joint distribution of the third and the fourth token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from swift_backend import SamplingParams, SwiftLLM
from tests.chi_square import p_value
from tests.conftest import save_tiny_model, tiny_config

PROMPT = [3, 4, 5]
STOP = 2
DRAWS = 1000
WORDS = {"w4": [4], "w5 w6": [5, 6], "w7 w8 w9": [7, 8, 9]}
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.15},
    "repetition_penalty": {"repetition_penalty": 6.0},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": -0.9},
    "logit_bias": {"logit_bias": {6: 1.5, 0: -3.0}},
    "bad_words": {"bad_words": list(WORDS)},
    "min_tokens": {"min_tokens": 4, "stop_token_ids": [STOP], "logit_bias": {STOP: 3.0}},
    "all": {
        "temperature": 1.3,
        "top_k": 9,
        "top_p": 0.93,
        "min_p": 0.03,
        "repetition_penalty": 1.4,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": {6: 1.0, 7: 1.0, STOP: 2.0},
        "bad_words": list(WORDS),
        "min_tokens": 4,
        "stop_token_ids": [STOP],
    },
}

ALONE = [name for name in SETTINGS if name != "all"]


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("llama", vocab_size=12, num_hidden_layers=6, eos_token_id=None, initializer_range=0.15)
    return save_tiny_model(tmp_path_factory.mktemp("twelve"), config)


@pytest.fixture(scope="module", params=["coupled", "rejection"])
def llm(twelve: Path, request: pytest.FixtureRequest) -> SwiftLLM:
    options: dict[str, Any] = {
        "dtype": "float32", "skip_ratio": 0.4, "kv_cache_tokens": 8192, "limit_drafts": False,
    }  # fmt: skip
    return SwiftLLM(str(twelve), acceptance=request.param, max_running=250, max_step_tokens=4096, **options)


@pytest.fixture(scope="module")
def beginnings() -> torch.Tensor:
    """Prompt and all first three tokens, int64 [1728, 6]."""
    starts = torch.cartesian_prod(*[torch.arange(12)] * 3)
    return torch.cat((torch.tensor([PROMPT]).expand(len(starts), -1), starts), dim=1)


@pytest.fixture(scope="module")
def model_logits(twelve: Path, beginnings: torch.Tensor) -> torch.Tensor:
    """transformers' logits of tokens one to four, float64 [1728, 4, 12]."""
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(twelve, dtype=torch.float32).eval()
        return model(beginnings).logits[:, len(PROMPT) - 1 :].double()


def chain(settings: dict[str, Any]) -> list[Any]:
    """transformers' processors, and the penalties of vLLM that transformers lacks, in the contract's order."""
    from transformers.generation import logits_process as theirs

    def penalise(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.nn.functional.one_hot(ids[:, len(PROMPT) :], 12).sum(dim=1)
        once = settings.get("presence_penalty", 0.0) * (counts > 0)
        return scores - once - settings.get("frequency_penalty", 0.0) * counts

    bias = [[[token], value] for token, value in settings.get("logit_bias", {}).items()]
    made = [
        theirs.RepetitionPenaltyLogitsProcessor(settings.get("repetition_penalty", 1.0)),
        penalise,
        theirs.SequenceBiasLogitsProcessor(bias) if bias else None,
        theirs.NoBadWordsLogitsProcessor(list(WORDS.values())) if "bad_words" in settings else None,
        theirs.MinNewTokensLengthLogitsProcessor(len(PROMPT), 4, [STOP]) if "min_tokens" in settings else None,
        theirs.TemperatureLogitsWarper(settings.get("temperature", 1.0)),
        theirs.TopKLogitsWarper(settings["top_k"]) if "top_k" in settings else None,
        theirs.TopPLogitsWarper(settings["top_p"]) if "top_p" in settings else None,
        theirs.MinPLogitsWarper(settings["min_p"]) if "min_p" in settings else None,
    ]
    return [one for one in made if one is not None]


def exact_pairs(model_logits: torch.Tensor, beginnings: torch.Tensor, settings: dict[str, Any]) -> torch.Tensor:
    """P(third token, fourth token | prompt), float64 [144]."""
    weight = torch.ones(len(beginnings), 1, dtype=torch.float64)
    for place in range(4):
        scores, ids = model_logits[:, place], beginnings[:, : len(PROMPT) + place]
        for processor in chain(settings):
            scores = processor(ids, scores)
        probs = torch.softmax(scores, dim=-1)
        if place < 3:
            weight = weight * probs.gather(1, beginnings[:, len(PROMPT) + place, None])
    return (weight * probs).view(144, 12, 12).sum(dim=0).flatten()


def noise_floor(exact: torch.Tensor, quantile: float = 0.999) -> float:
    """How far, in total variation, so many draws from the exact distribution are from it."""
    p = exact.numpy() / float(exact.sum())
    drawn = np.random.default_rng(0).multinomial(DRAWS, p, size=2000) / DRAWS
    return float(np.quantile(np.abs(drawn - p).sum(axis=1) / 2, quantile))


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ALONE), "all"])
def test_total_variation_is_within_the_noise(
    llm: SwiftLLM, model_logits: torch.Tensor, beginnings: torch.Tensor, name: str
) -> None:
    """SWIFT B1, vLLM #9834, #6718, #40149, openvino.genai #4190: drafted, recovered and bonus tokens at any place."""
    settings = {"temperature": 1.0, **SETTINGS[name]}
    common: dict[str, Any] = {"max_tokens": 5, "speculation": "fixed", "confidence_threshold": 0.0}
    params = [SamplingParams(seed=seed, **common, **settings) for seed in range(DRAWS)]
    outputs = llm.generate([PROMPT] * DRAWS, params)
    drafted = sum(out.stats.draft_tokens for out in outputs)
    accepted = sum(out.stats.accepted_draft_tokens for out in outputs)
    assert 0.1 * drafted < accepted < 0.95 * drafted
    exact = exact_pairs(model_logits, beginnings, settings)
    cells = [out.token_ids[2] * 12 + out.token_ids[3] for out in outputs]
    drawn = torch.bincount(torch.tensor(cells), minlength=144) / DRAWS
    assert float((drawn - exact).abs().sum()) / 2 < noise_floor(exact)
    assert p_value(cells, exact) > 1e-3
