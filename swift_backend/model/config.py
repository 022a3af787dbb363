"""What does the model look like? The one place that reads Hugging Face config names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from swift_backend.errors import ModelLoadError

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
# transformers reads a mistral config with layer_types as "ministral": the same model, windowed layer by layer.
MODEL_TYPES = {family: family for family in ARCHITECTURES.values()} | {"ministral": "mistral"}
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
LAYER_TYPES = ("full_attention", "sliding_attention")
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
SIZE_LIMIT = 2**31
# What transformers' and our own arithmetic on a malformed config ends in.
_MALFORMED = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family; differences between families are flags.

    context_length: positions that the model was made for, prompt and answer together (max_position_embeddings).
    inv_freq: float32 [head_dim / 2], rope frequencies after scaling; rope_scale multiplies cos and sin.
    qkv_bias, output_bias, mlp_bias: whether these projections add a bias; qk_norm: queries and keys are normed.
    tied_head: the embedding is also the head, unless the checkpoint stores a head that differs.
    window: number of positions that a sliding-window layer sees, its own included; windowed: which layers those are.
    eos_ids: tokens that end an answer: generation_config.json's, else config.json's; an empty tuple is "none".
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    context_length: int
    inv_freq: torch.Tensor
    rope_scale: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_head: bool
    window: int | None
    windowed: tuple[bool, ...]
    eos_ids: tuple[int, ...]

    @property
    def scale(self) -> float:
        """Factor of the attention scores."""
        return float(self.head_dim**-0.5)


def read_config(directory: Path) -> ModelConfig:
    """Read config.json and (where there is one) generation_config.json of a Hugging Face directory.

    Raises ModelLoadError, one sentence, when config.json is missing, when a file is no JSON object or has a field of
    the wrong type or out of range, and when it names something that this decoder does not compute (see from_hf).
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    raw = _read_object(directory / "config.json")
    _family_of(raw.get("model_type"))
    _check_sizes(raw)
    generation = directory / "generation_config.json"
    fields = _read_object(generation) if generation.is_file() else None
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except StrictDataclassError as error:
        raise ModelLoadError(f"{directory} has no usable config.json: {_reason(error.__cause__ or error)}") from error
    except _MALFORMED as error:
        raise ModelLoadError(f"{directory} has no usable config.json: {_reason(error)}") from error
    return from_hf(config, fields)


def from_hf(config: Any, generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """Translate a transformers config object (and generation_config.json's fields, for the end-of-sequence ids).

    Raises ModelLoadError for: another model type or architecture, or two that contradict each other; a quantised
    checkpoint; an activation other than silu; a size that is no whole number in [1, 2**31); query heads that are no
    multiple of the key/value heads; a norm_eps that is negative or not finite; a rope type not in ROPE_TYPES, one of
    part of a head, or one that is not finite; a window below 1, a layer type not in LAYER_TYPES, or sliding layers
    without a window; end ids that are no ids.
    """
    family = _family(config)
    _check_sizes(config.to_dict())
    _check_heads(config)
    head_dim = _head_dim(config)
    inv_freq, rope_scale = _rope(config, head_dim)
    window, windowed = _window(config, family)
    attention_bias = family in ("llama", "qwen3") and config.attention_bias  # mistral has none, whatever it says
    return ModelConfig(
        family=family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        norm_eps=_norm_eps(config),
        context_length=config.max_position_embeddings,
        inv_freq=inv_freq,
        rope_scale=rope_scale,
        qkv_bias=family == "qwen2" or attention_bias,
        output_bias=attention_bias,
        mlp_bias=family == "llama" and config.mlp_bias,
        qk_norm=family == "qwen3",
        tied_head=config.tie_word_embeddings,
        window=window,
        windowed=windowed,
        eos_ids=_eos_ids(config, generation or {}),
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read: {_reason(error)}") from error
    if not isinstance(fields, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return fields


def _reason(error: BaseException) -> str:
    """The first line of an error's text, without the list of all that was tried."""
    text = str(error).strip() or type(error).__name__
    return text.split("\n")[0].split(". Errors: ")[0]


def _check_sizes(fields: Mapping[str, Any]) -> None:
    """Each size that is given must be one; a missing one is transformers' default, or refused by transformers."""
    for name in SIZES:
        value = fields.get(name)
        if value is not None and not (type(value) is int and 1 <= value < SIZE_LIMIT):
            raise ModelLoadError(
                f"{name} of the model's config must be a whole number in [1, {SIZE_LIMIT}), got {value!r}"
            )


def _check_heads(config: Any) -> None:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % kv_heads:
        raise ModelLoadError(
            f"num_attention_heads must be a multiple of num_key_value_heads, got {heads} and {kv_heads}"
        )


def _head_dim(config: Any) -> int:
    head_dim = getattr(config, "head_dim", None)
    return config.hidden_size // config.num_attention_heads if head_dim is None else int(head_dim)


def _norm_eps(config: Any) -> float:
    if not 0 <= config.rms_norm_eps < float("inf"):
        raise ModelLoadError(f"rms_norm_eps must be in [0, infinity), got {config.rms_norm_eps}")
    return float(config.rms_norm_eps)


def _family_of(model_type: object) -> str:
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise ModelLoadError(
            f"model type {model_type} is not supported; supported are {', '.join(ARCHITECTURES.values())}"
        )
    return MODEL_TYPES[model_type]


def _family(config: Any) -> str:
    if getattr(config, "quantization_config", None):
        raise ModelLoadError("quantised checkpoints are not supported; use the unquantised one or a GGUF file")
    names = getattr(config, "architectures", None) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelLoadError(f"architectures must be a list of names, got {names!r}")
    family = _family_of(config.model_type)
    named = {ARCHITECTURES[name] for name in names if name in ARCHITECTURES}
    if names and not named:
        raise ModelLoadError(
            f"architecture {', '.join(names)} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    if named and family not in named:
        raise ModelLoadError(f"architectures names {', '.join(names)}, but model_type is {config.model_type}")
    if config.hidden_act != "silu":
        raise ModelLoadError(f"activation {config.hidden_act} is not supported; supported is silu")
    return family


def _rope(config: Any, head_dim: int) -> tuple[torch.Tensor, float]:
    """Inverse frequencies, float32 [head_dim / 2], and the factor for cos and sin."""
    named = f"rope_parameters {config.rope_parameters}"
    try:
        inv_freq, scale = _frequencies(config, head_dim)
    except _MALFORMED as error:
        raise ModelLoadError(f"{named} cannot be computed: {_reason(error)}") from error
    rotated = 2 * inv_freq.shape[0]
    if rotated != head_dim:
        raise ModelLoadError(f"{named} rotate {rotated} of a head's {head_dim} dimensions; supported is all of them")
    if not torch.isfinite(inv_freq * scale).all():
        raise ModelLoadError(f"{named} give frequencies that are not finite")
    return inv_freq, scale


def _frequencies(config: Any, head_dim: int) -> tuple[torch.Tensor, float]:
    """Scaled frequencies by transformers' own functions; the default ones by the formula, as its models do."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = config.rope_parameters
    kind = parameters.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise ModelLoadError(f"rope scaling {kind} is not supported; supported are {', '.join(ROPE_TYPES)}")
    if kind != "default":
        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return inv_freq.float(), float(scale)
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / (parameters["rope_theta"] ** exponents), 1.0


def _window(config: Any, family: str) -> tuple[int | None, tuple[bool, ...]]:
    """The sliding window and the layers that have it, as transformers' model of the family reads them.

    llama has none, whatever its config says; in mistral every layer has it; the others list their layers.
    """
    full = (False,) * config.num_hidden_layers
    if family == "llama":
        return None, full
    window = config.sliding_window
    windowed = (window is not None,) * len(full) if config.model_type == "mistral" else _sliding_layers(config)
    if not any(windowed):
        return None, full
    if type(window) is not int or window < 1:
        raise ModelLoadError(f"sliding_window must be a whole number >= 1 for layers that slide, got {window!r}")
    return (window, windowed) if window < config.max_position_embeddings else (None, full)


def _sliding_layers(config: Any) -> tuple[bool, ...]:
    unknown = sorted(set(config.layer_types) - set(LAYER_TYPES))
    if unknown:
        raise ModelLoadError(f"layer type {unknown[0]} is not supported; supported are {', '.join(LAYER_TYPES)}")
    return tuple(kind == "sliding_attention" for kind in config.layer_types)


def _eos_ids(config: Any, generation: Mapping[str, Any]) -> tuple[int, ...]:
    eos = generation.get("eos_token_id")
    if eos is None:
        eos = config.eos_token_id
    ids = [] if eos is None else eos if isinstance(eos, list | tuple) else [eos]
    if not all(type(one) is int for one in ids):
        raise ModelLoadError(f"eos_token_id must be a token id or a list of them, got {eos!r}")
    return tuple(ids)
