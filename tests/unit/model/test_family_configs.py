"""What a family's config says is heeded where transformers' model heeds it, and refused where we do not compute it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swift_backend.errors import ModelLoadError
from swift_backend.model.config import ModelConfig, from_hf, read_config
from swift_backend.model.families import FAMILIES
from tests.conftest import HALF_A_HEAD, SMALL, tiny_config

FULL, SLIDING = "full_attention", "sliding_attention"
NEW = ("granite", "olmo2", "smollm3", "phi3", "gemma2", "gemma3_text", "stablelm", "gpt_neox")
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


def refusal(directory: Path, **fields: Any) -> str:
    """The one sentence that the refusal of a config.json consists of."""
    (directory / "config.json").write_text(json.dumps({**SMALL, **fields}))
    with pytest.raises(ModelLoadError) as raised:
        read_config(directory)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def refused(architecture: str, **changes: Any) -> str:
    config = tiny_config(architecture)
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(ModelLoadError) as raised:
        from_hf(config)
    return str(raised.value)


def config_of(architecture: str, **changes: Any) -> ModelConfig:
    return from_hf(tiny_config(architecture, **changes))


@pytest.mark.parametrize("architecture", NEW)
def test_each_family_is_known_by_its_model_type_and_its_architecture(tmp_path: Path, architecture: str) -> None:
    config = tiny_config(architecture)
    config.architectures = [FAMILIES[architecture].architecture]
    config.save_pretrained(tmp_path)
    assert read_config(tmp_path).family == architecture


@pytest.mark.parametrize(
    "model_type", ["gemma3", "granitemoe", "mixtral", "qwen3_moe", "phimoe", "olmo3", "deepseek_v3", "gpt_bigcode"]
)
def test_relatives_are_refused_by_name(tmp_path: Path, model_type: str) -> None:
    message = refusal(tmp_path, model_type=model_type)
    assert message == f"model type {model_type} is not supported; supported are {', '.join(FAMILIES)}"


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors", "mxfp4"])
def test_quantised_checkpoints_are_refused_by_method(tmp_path: Path, method: str) -> None:
    message = refusal(tmp_path, model_type="gemma2", quantization_config={"quant_method": method, "bits": 4})
    assert message == (
        f"quantised checkpoints ({method}) are not supported; supported are float32, bfloat16 and float16 ones, and "
        "GGUF files, which are dequantised"
    )


@pytest.mark.parametrize("named", [{"compression_config": {"bits": 4}}, {"quantization_config": "int4"}])
def test_quantisation_without_a_method_is_refused(named: dict[str, Any]) -> None:
    assert refused("olmo2", **named).startswith("quantised checkpoints (of an unnamed method) are not supported; ")


@pytest.mark.parametrize(
    ("architecture", "field", "value"),
    [
        ("granite", "embedding_multiplier", 0),
        ("granite", "residual_multiplier", -0.5),
        ("granite", "attention_multiplier", float("inf")),
        ("granite", "logits_scaling", float("nan")),
        ("gemma2", "attn_logit_softcapping", 0.0),
        ("gemma2", "final_logit_softcapping", -30.0),
        ("gemma2", "query_pre_attn_scalar", 0),
        ("gemma3_text", "query_pre_attn_scalar", -256),
    ],
)
def test_factors_and_caps_are_positive(architecture: str, field: str, value: float) -> None:
    assert refused(architecture, **{field: value}) == f"{field} must be in (0, infinity), got {value}"


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3_text"])
def test_attention_in_both_directions_is_refused(architecture: str) -> None:
    message = refused(architecture, use_bidirectional_attention=True)
    assert message == "use_bidirectional_attention is not supported; supported is false"


def test_the_eps_of_a_layer_norm_is_checked_under_its_name() -> None:
    assert refused("gpt_neox", layer_norm_eps=-1.0) == "layer_norm_eps must be in [0, infinity), got -1.0"


@pytest.mark.parametrize("factor", [0.0, 1.5])
def test_rope_turns_a_part_of_a_head(factor: float) -> None:
    message = refused("stablelm", rope_parameters={**HALF_A_HEAD, "partial_rotary_factor": factor})
    assert message.endswith(f" rotate {int(8 * factor)} of a head's 8 dimensions; supported is 1 to 8")


def test_rope_types_are_refused_by_layer_type() -> None:
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    ropes = {FULL: dynamic, SLIDING: {"rope_type": "default", "rope_theta": 1e4}}
    message = refused("gemma3_text", rope_parameters=ropes)
    assert message == "rope scaling dynamic is not supported; supported are default, linear, llama3, yarn, longrope"


def test_ropes_by_layer() -> None:
    gemma = config_of("gemma3_text")
    assert gemma.rope_of == (1, 1, 0, 1, 1, 0, 1) and gemma.windowed == (True, True, False) * 2 + (True,)
    assert [rope.inv_freq[1].item() for rope in gemma.ropes] == pytest.approx([1e5 ** (-1 / 8) / 8, 1e3 ** (-1 / 8)])
    assert config_of("smollm3").rope_of == (0, 0, None, 0, 0, None, 0)
    assert config_of("smollm3", no_rope_layers=[1, 0] * 4).rope_of == (0, None) * 3 + (0,)
    assert [rope.width for rope in config_of("gpt_neox").ropes] == [4]


def test_layers_without_rope_must_all_be_listed() -> None:
    message = refused("smollm3", no_rope_layers=[1, 0])
    assert message == "no_rope_layers must have an entry for each of the 7 layers, got 2"


def test_other_families_do_not_heed_a_list_of_layers_without_rope() -> None:
    assert config_of("llama", no_rope_layers=[0] * 7).rope_of == (0,) * 7


def own_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without those of transformers, which has something to say of such configs, too."""
    return [one.getMessage() for one in caplog.records if one.name.startswith("swift_backend")]


def test_longrope_ends_where_its_factors_change(caplog: pytest.LogCaptureFixture) -> None:
    """Longer texts have other frequencies at every position, so transformers computes all of them anew."""
    phi = config_of("phi3", rope_parameters=dict(LONGROPE), original_max_position_embeddings=128)
    assert (phi.context_length, phi.ropes[0].longest) == (128, 128)
    [told] = own_messages(caplog)
    assert told.startswith("The context is 128 tokens, and not 256: in a longer text, longrope has other frequencies")
    caplog.clear()
    short = config_of("phi3", rope_parameters=dict(LONGROPE), original_max_position_embeddings=1024)
    assert short.context_length == 256 and not own_messages(caplog)


@pytest.mark.parametrize(
    ("architecture", "changes", "window", "windowed"),
    [
        ("gemma2", {}, 12, (True, False) * 3 + (True,)),
        ("gemma2", {"layer_types": [FULL] * 6 + [SLIDING]}, 12, (False,) * 6 + (True,)),
        ("gemma2", {"sliding_window": 256}, None, (False,) * 7),
        ("phi3", {}, 12, (True,) * 7),
        ("phi3", {"sliding_window": None}, None, (False,) * 7),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 12}, 12, (False, False, True) * 2 + (False,)),
        ("smollm3", {"sliding_window": 12}, None, (False,) * 7),
        ("granite", {"sliding_window": 12}, None, (False,) * 7),
        ("olmo2", {"sliding_window": 12}, None, (False,) * 7),
        ("stablelm", {"sliding_window": 12}, None, (False,) * 7),
        ("gpt_neox", {"sliding_window": 12}, None, (False,) * 7),
    ],
)
def test_windows(architecture: str, changes: dict[str, Any], window: int | None, windowed: tuple[bool, ...]) -> None:
    config = config_of(architecture, **changes)
    assert (config.window, config.windowed) == (window, windowed)


def test_what_makes_a_granite_changes_no_llama() -> None:
    stray = {"residual_multiplier": 0.5, "embedding_multiplier": 2.0, "attention_multiplier": 9.0, "logits_scaling": 3}
    llama, plain = config_of("llama", **stray), config_of("llama")
    for name in ("residual_scale", "embedding_scale", "scale", "logit_divisor"):
        assert getattr(llama, name) == getattr(plain, name)


def test_gemma3_has_no_cap_on_scores_whatever_its_config_says() -> None:
    """transformers' model does not pass it on."""
    assert config_of("gemma3_text", attn_logit_softcapping=50.0).score_cap is None


def test_key_value_heads_of_a_gpt_neox_are_its_heads() -> None:
    config = config_of("gpt_neox", num_key_value_heads=2)
    assert (config.num_heads, config.num_kv_heads) == (6, 6)


@pytest.mark.parametrize(
    ("architecture", "changes", "norm"),
    [
        ("stablelm", {"use_parallel_residual": True}, "input_layernorm"),
        ("stablelm", {}, "post_attention_layernorm"),
        ("gpt_neox", {}, "post_attention_layernorm"),
    ],
)
def test_a_parallel_stablelm_has_one_norm(architecture: str, changes: dict[str, Any], norm: str) -> None:
    assert config_of(architecture, **changes).names.mlp_norm == norm
