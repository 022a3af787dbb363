"""A config.json is read as transformers' models read it, or refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swift_backend.errors import ModelLoadError
from swift_backend.model.config import ModelConfig, from_hf, read_config
from tests.conftest import SMALL, tiny_config

LLAMA = {**SMALL, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
SUPPORTED = (
    "supported are llama, mistral, qwen2, qwen3, granite, olmo2, smollm3, phi3, gemma2, gemma3_text, stablelm, gpt_neox"
)
SLIDING = ["full_attention", "sliding_attention"] * 3 + ["full_attention"]


def read(directory: Path, generation: str | None = None, **fields: Any) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps({**LLAMA, **fields}))
    if generation is not None:
        (directory / "generation_config.json").write_text(generation)
    return read_config(directory)


def refusal(directory: Path, generation: str | None = None, **fields: Any) -> str:
    """The one sentence that the refusal consists of."""
    with pytest.raises(ModelLoadError) as raised:
        read(directory, generation, **fields)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"hidden_size": "48"},
            r"hidden_size of the model's config must be a whole number in [1, 2147483648), got '48'",
        ),
        ({"num_attention_heads": 0}, "num_attention_heads of the model's config must be a whole number in [1, 21474"),
        ({"num_key_value_heads": -1}, "num_key_value_heads of the model's config must be a whole number in [1, 21474"),
        ({"head_dim": 0}, "head_dim of the model's config must be a whole number in [1, 2147483648), got 0"),
        ({"vocab_size": True}, "vocab_size of the model's config must be a whole number in [1, 2147483648), got True"),
        (
            {"hidden_size": 10**30},
            "hidden_size of the model's config must be a whole number in [1, 2147483648), got 1000",
        ),
        ({"hidden_size": None}, "has no usable config.json: Field 'hidden_size' expected int, got NoneType"),
        ({"rms_norm_eps": "x"}, "has no usable config.json: Field 'rms_norm_eps' expected float, got str"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps must be in [0, infinity), got -1.0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be in [0, infinity), got nan"),
        ({"tie_word_embeddings": None}, "has no usable config.json: Field 'tie_word_embeddings' expected bool"),
        (
            {"layer_types": ["full_attention"]},
            "`num_hidden_layers` (7) must be equal to the number of `layer_types` (1)",
        ),
        ({"num_key_value_heads": 4}, "num_attention_heads must be a multiple of num_key_value_heads, got 6 and 4"),
        ({"id2label": 3}, "has no usable config.json: 'int' object has no attribute 'items'"),
        ({"dtype": "no_dtype"}, "has no usable config.json: module 'torch' has no attribute 'no_dtype'"),
        (
            {"hidden_act": "tanh"},
            "activation tanh is not supported; supported are gelu, gelu_fast, gelu_new, gelu_py",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised checkpoints (gptq) are not supported; supp"),
        ({"eos_token_id": {"a": 1}}, "has no usable config.json: Field 'eos_token_id' with value {'a': 1} doesn't"),
    ],
)
def test_a_malformed_config_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    assert message in refusal(tmp_path, **fields)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "config.json cannot be read: Expecting value: line 1 column 1 (char 0)"),
        ("{", "config.json cannot be read: Expecting property name"),
        ("[" * 100_000, "config.json cannot be read: maximum recursion depth"),
        ("null", "config.json must hold a JSON object"),
        ("[1]", "config.json must hold a JSON object"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / name).write_text(content)
    with pytest.raises(ModelLoadError) as raised:
        read_config(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path / name} ")
    assert message in str(raised.value)


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json cannot be read: \[Errno 2\]"):
        read_config(tmp_path)


@pytest.mark.parametrize("eos", ['{"a": 1}', '"x"', "[[1]]", "1.5", "true", '["2"]'])
def test_an_end_token_that_is_no_id_is_refused(tmp_path: Path, eos: str) -> None:
    message = refusal(tmp_path, f'{{"eos_token_id": {eos}}}')
    assert message == f"eos_token_id must be a token id or a list of them, got {json.loads(eos)!r}"


@pytest.mark.parametrize(
    ("generation", "eos_ids"),
    [
        (None, (1,)),
        ("{}", (1,)),
        ('{"eos_token_id": null}', (1,)),
        ('{"eos_token_id": 5}', (5,)),
        ('{"eos_token_id": [5, 6]}', (5, 6)),
        ('{"eos_token_id": [], "temperature": -1}', ()),
    ],
)
def test_the_generation_config_names_the_end_tokens_first(
    tmp_path: Path, generation: str | None, eos_ids: tuple[int, ...]
) -> None:
    assert read(tmp_path, generation).eos_ids == eos_ids


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("architectures", [None, []])
def test_the_model_type_decides_where_no_architecture_is_named(
    tmp_path: Path, model_type: str, architectures: list[str] | None
) -> None:
    assert read(tmp_path, model_type=model_type, architectures=architectures).family == model_type


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model_type": "gpt2", "architectures": None},
            f"model type gpt2 is not supported; {SUPPORTED}",
        ),
        ({"model_type": ["a"]}, f"model type ['a'] is not supported; {SUPPORTED}"),
        ({"model_type": None}, f"model type None is not supported; {SUPPORTED}"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "architecture LlamaForSequenceClassification is not supported; supported are "
            "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, GraniteForCausalLM, "
            "Olmo2ForCausalLM, SmolLM3ForCausalLM, Phi3ForCausalLM, Gemma2ForCausalLM, Gemma3ForCausalLM, "
            "StableLmForCausalLM, GPTNeoXForCausalLM",
        ),
        (
            {"architectures": ["Qwen3ForCausalLM"]},
            "architectures names Qwen3ForCausalLM, but model_type is llama",
        ),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list of names, got 'LlamaForCausalLM'"),
        ({"architectures": [1]}, "architectures must be a list of names, got [1]"),
    ],
)
def test_another_architecture_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    assert refusal(tmp_path, **fields) == message


def test_code_of_a_checkpoint_is_neither_run_nor_asked_about(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("raise SystemExit('code of the checkpoint ran')")
    own = {"architectures": ["OwnModel"], "auto_map": {"AutoConfig": "own.OwnConfig"}}
    assert "model type own is not supported" in refusal(tmp_path, model_type="own", **own)
    assert "architecture OwnModel is not supported" in refusal(tmp_path, **own)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (
            {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
            " rotate 4 of a head's 8 dimensions; supp",
        ),
        ({"rope_type": "linear", "factor": "x"}, " cannot be computed: unsupported operand type"),
        ({"rope_type": "linear", "factor": 0}, " give frequencies that are not finite"),
        ({"rope_theta": None}, " cannot be computed: unsupported operand type"),
        ({"rope_theta": -1.0}, " give frequencies that are not finite"),
        (
            {"rope_type": "dynamic", "factor": 2.0},
            "rope scaling dynamic is not supported; supported are default, linear",
        ),
        ({"rope_type": "yarn"}, "has no usable config.json: "),
    ],
)
def test_a_rotation_that_we_do_not_compute_is_refused(tmp_path: Path, rope: dict[str, Any], message: str) -> None:
    assert message in refusal(tmp_path, rope_parameters={"rope_theta": 10000.0, **rope})


@pytest.mark.parametrize(
    ("model_type", "fields", "biases"),
    [
        ("llama", {"attention_bias": True}, (True, True, False)),
        ("llama", {"mlp_bias": True}, (False, False, True)),
        ("mistral", {"attention_bias": True, "mlp_bias": True}, (False, False, False)),
        ("qwen2", {}, (True, False, False)),
        ("qwen2", {"attention_bias": False, "mlp_bias": True}, (True, False, False)),
        ("qwen3", {"attention_bias": True, "mlp_bias": True}, (True, True, False)),
        ("qwen3", {}, (False, False, False)),
    ],
)
def test_biases_are_those_of_transformers_modules(
    tmp_path: Path, model_type: str, fields: dict[str, Any], biases: tuple[bool, ...]
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    ours = read(tmp_path, model_type=model_type, architectures=None, **fields)
    assert (ours.qkv_bias, ours.output_bias, ours.mlp_bias) == biases
    layer = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).model.layers[0]
    linears = (layer.self_attn.q_proj, layer.self_attn.o_proj, layer.mlp.up_proj)
    assert tuple(linear.bias is not None for linear in linears) == biases


@pytest.mark.parametrize(
    ("model_type", "fields", "window", "windowed"),
    [
        ("llama", {"sliding_window": 12}, None, (False,) * 7),
        ("llama", {"sliding_window": 0, "layer_types": SLIDING}, None, (False,) * 7),
        ("mistral", {"sliding_window": 12}, 12, (True,) * 7),
        ("mistral", {"sliding_window": 256}, None, (False,) * 7),
        ("mistral", {"sliding_window": None}, None, (False,) * 7),
        ("mistral", {"sliding_window": 12, "layer_types": SLIDING}, 12, (False, True) * 3 + (False,)),
        ("qwen2", {"sliding_window": 12}, None, (False,) * 7),
        ("qwen2", {"sliding_window": 0}, None, (False,) * 7),
        ("qwen2", {"sliding_window": 12, "use_sliding_window": True}, None, (False,) * 7),  # from layer 28 on
        (
            "qwen2",
            {"sliding_window": 12, "use_sliding_window": True, "max_window_layers": 5},
            12,
            (False,) * 5 + (True,) * 2,
        ),
        (
            "qwen3",
            {"sliding_window": 12, "use_sliding_window": True, "layer_types": SLIDING},
            12,
            (False, True) * 3 + (False,),
        ),
    ],
)
def test_windows_are_those_that_transformers_heeds(
    tmp_path: Path, model_type: str, fields: dict[str, Any], window: int | None, windowed: tuple[bool, ...]
) -> None:
    architectures = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    named = [f"{architectures[model_type]}ForCausalLM"]
    config = read(tmp_path, model_type=model_type, architectures=named, **fields)
    assert (config.window, config.windowed) == (window, windowed)


def test_mistral_itself_does_not_read_layer_types() -> None:
    config = from_hf(tiny_config("mistral", sliding_window=12, layer_types=SLIDING))
    assert (config.window, config.windowed) == (12, (True,) * 7)


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("mistral", {"sliding_window": 0}, "sliding_window must be a whole number >= 1 for layers that slide, got 0"),
        ("mistral", {"sliding_window": -4}, "sliding_window must be a whole number >= 1 for layers that slide, got -4"),
        (
            "qwen2",
            {"sliding_window": 0, "use_sliding_window": True, "max_window_layers": 1},
            "sliding_window must be a whole number >= 1 for layers that slide, got 0",
        ),
        (
            "qwen3",
            {"layer_types": SLIDING},
            "sliding_window must be a whole number >= 1 for layers that slide, got None",
        ),
        (
            "qwen3",
            {"layer_types": ["chunked_attention"] * 7},
            "layer type chunked_attention is not supported; supported are full_attention, sliding_attention",
        ),
    ],
)
def test_a_window_of_nothing_is_refused(tmp_path: Path, model_type: str, fields: dict[str, Any], message: str) -> None:
    assert refusal(tmp_path, model_type=model_type, architectures=None, **fields) == message
