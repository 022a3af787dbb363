"""Greedy decoding equals transformers token for token: what a config of a supported family may vary."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from swift_backend import SamplingParams, SwiftLLM
from tests.conftest import TINY_VOCABULARY, change_config, save_tiny_model, tiny_config

MAX_TOKENS = 16
WINDOW = 12
SLIDING = ["full_attention", "sliding_attention", "sliding_attention"] * 2 + ["full_attention"]
PARAMS = {
    "off": SamplingParams(max_tokens=MAX_TOKENS, speculation="off"),
    "fixed": SamplingParams(max_tokens=MAX_TOKENS, speculation="fixed", confidence_threshold=0.0),
}


def rope(kind: str, **parameters: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "default rope": ("llama", rope("default")),
    "linear rope": ("llama", rope("linear", factor=4.0)),
    "yarn rope": ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "attention and mlp bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "own head_dim": ("llama", {"head_dim": 16}),
    "one kv head": ("llama", {"num_key_value_heads": 1}),
    "a kv head per head": ("llama", {"num_key_value_heads": 6}),
    "untied head": ("llama", {"tie_word_embeddings": False}),
    "qwen2 with windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": SLIDING},
    ),
    "qwen3 with windows": ("qwen3", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 3}),
    "qwen3 with bias": ("qwen3", {"attention_bias": True}),
}


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(2, TINY_VOCABULARY) for _ in range(length)] for length in (1, 3, 20, 45)]


def answers(directory: Path, speculation: str = "off", dtype: str = "float32", **options: Any) -> list[list[int]]:
    llm = SwiftLLM(str(directory), dtype=dtype, debug=True, skip_ratio=0.4, kv_cache_tokens=1024, **options)
    return [out.token_ids for out in llm.generate(prompts(), PARAMS[speculation])]


def teacher_forced(directory: Path, given: list[list[int]]) -> list[list[int]]:
    """What transformers' model itself, without a cache, puts after every prefix of the prompts with these answers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokens = []
    for prompt, answer in zip(prompts(), given, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + answer]), use_cache=False).logits
        tokens.append(logits[0, len(prompt) - 1 : -1].argmax(-1).tolist())
    return tokens


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    architecture, changes = FAMILIES[request.param]
    return save_tiny_model(tmp_path_factory.mktemp("family"), tiny_config(architecture, **changes))


@pytest.fixture(scope="module")
def expected(family: Path, transformers_greedy: Callable[[Path, list[int], int], list[int]]) -> list[list[int]]:
    return [transformers_greedy(family, prompt, MAX_TOKENS) for prompt in prompts()]


@pytest.mark.parametrize("speculation", ["off", "fixed"])
def test_in_a_batch(family: Path, expected: list[list[int]], speculation: str) -> None:
    assert answers(family, speculation) == expected


@pytest.mark.parametrize("max_step_tokens", [2, 3])
@pytest.mark.parametrize("speculation", ["off", "fixed"])
def test_fewer_rows_a_step_than_sequences(
    tiny_model: Callable[[str], Path],
    transformers_greedy: Callable[[Path, list[int], int], list[int]],
    speculation: str,
    max_step_tokens: int,
) -> None:
    directory = tiny_model("llama")
    expected = [transformers_greedy(directory, prompt, MAX_TOKENS) for prompt in prompts()]
    assert answers(directory, speculation, max_step_tokens=max_step_tokens) == expected


@pytest.mark.parametrize("speculation", ["off", "fixed"])
def test_llama_has_no_window_whatever_its_config_says(tmp_path: Path, speculation: str) -> None:
    save_tiny_model(tmp_path, tiny_config("llama"))
    without = answers(tmp_path)
    change_config(tmp_path, sliding_window=4, layer_types=["sliding_attention"] * 7)
    assert answers(tmp_path, speculation) == without == teacher_forced(tmp_path, without)


@pytest.mark.parametrize("speculation", ["off", "fixed"])
def test_mistral_with_layer_types_has_windows_in_those_layers(tmp_path: Path, speculation: str) -> None:
    """transformers turns such a config into its "ministral"."""
    save_tiny_model(tmp_path, tiny_config("mistral"))
    change_config(tmp_path, sliding_window=4, layer_types=SLIDING)
    ours = answers(tmp_path, speculation)
    assert ours == teacher_forced(tmp_path, ours)


@pytest.mark.parametrize("speculation", ["off", "fixed"])
def test_mistral_has_no_bias_whatever_its_config_says(tmp_path: Path, speculation: str) -> None:
    save_tiny_model(tmp_path, tiny_config("mistral"))
    change_config(tmp_path, attention_bias=True, mlp_bias=True)
    ours = answers(tmp_path, speculation)
    assert ours == teacher_forced(tmp_path, ours)


@pytest.mark.parametrize("speculation", ["off", "fixed"])
def test_a_stored_head_wins_over_a_config_that_says_it_is_tied(tmp_path: Path, speculation: str) -> None:
    save_tiny_model(tmp_path, tiny_config("llama"))
    file = tmp_path / "model.safetensors"
    head = 0.2 * torch.randn(TINY_VOCABULARY, 48, generator=torch.Generator().manual_seed(1))
    save_file({**load_file(file), "lm_head.weight": head}, file, {"format": "pt"})
    ours = answers(tmp_path, speculation)
    assert ours == teacher_forced(tmp_path, ours)


@pytest.mark.parametrize("speculation", ["off", "fixed"])
def test_a_window_of_one_is_attention_of_each_token_to_itself(tmp_path: Path, speculation: str) -> None:
    """transformers' cache keeps everything for a window of 1, so the reference is written out here."""
    save_tiny_model(tmp_path, tiny_config("mistral", sliding_window=1))
    after = self_attention_only(load_file(tmp_path / "model.safetensors"))
    for prompt, answer in zip(prompts(), answers(tmp_path, speculation), strict=True):
        assert answer == [after[token] for token in [prompt[-1], *answer[:-1]]]


def self_attention_only(weights: dict[str, torch.Tensor]) -> list[int]:
    """For each token the most likely next one: softmax over one key is 1, so attention is the token's own value."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (48,), weights[f"{name}.weight"], 1e-6)

    x = weights["model.embed_tokens.weight"]
    for layer in range(7):
        prefix = f"model.layers.{layer}."
        value = norm(x, prefix + "input_layernorm") @ weights[prefix + "self_attn.v_proj.weight"].T
        heads = value.view(-1, 2, 8).repeat_interleave(3, dim=1).flatten(1)  # 3 query heads share a value
        x = x + heads @ weights[prefix + "self_attn.o_proj.weight"].T
        normed = norm(x, prefix + "post_attention_layernorm")
        gate, up = (normed @ weights[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (F.silu(gate) * up) @ weights[prefix + "mlp.down_proj.weight"].T
    return [int(token) for token in (norm(x, "model.norm") @ weights["lm_head.weight"].T).argmax(-1)]


def test_float16_answers_as_float32_does(tiny_model: Callable[[str], Path]) -> None:
    """Half precision moves logits by a thousandth, which over these few tokens changes no choice."""
    half, full = (answers(tiny_model("qwen3"), dtype=dtype) for dtype in ("float16", "float32"))
    assert [answer[:5] for answer in half] == [answer[:5] for answer in full]
