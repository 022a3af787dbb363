"""What does the model look like? The one place that reads Hugging Face config names."""

from __future__ import annotations

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
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family; differences between families are flags.

    window: number of positions that a sliding-window layer sees; windowed: which layers those are.
    inv_freq: float32 [head_dim / 2], rope frequencies after scaling; rope_scale multiplies cos and sin.
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
    """Read config.json and generation_config.json of a Hugging Face directory.

    Raises ModelLoadError when a file is missing or damaged, or names something this decoder does not compute.
    """
    from transformers import AutoConfig, GenerationConfig

    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).split("\n")[0]
        raise ModelLoadError(f"{directory} has no usable config.json: {reason}") from error
    try:
        generation = GenerationConfig.from_pretrained(directory, local_files_only=True)
    except OSError:
        generation = None
    return from_hf(config, generation)


def from_hf(config: Any, generation: Any = None) -> ModelConfig:
    """Translate a transformers config object (and generation config, for the end-of-sequence ids)."""
    family = _family(config)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    inv_freq, rope_scale = _rope(config)
    window, windowed = _window(config)
    qkv_bias = family == "qwen2" or bool(getattr(config, "attention_bias", False))
    return ModelConfig(
        family=family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        norm_eps=config.rms_norm_eps,
        context_length=config.max_position_embeddings,
        inv_freq=inv_freq,
        rope_scale=rope_scale,
        qkv_bias=qkv_bias,
        output_bias=family in ("llama", "qwen3") and bool(getattr(config, "attention_bias", False)),
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        qk_norm=family == "qwen3",
        tied_head=bool(config.tie_word_embeddings),
        window=window,
        windowed=windowed,
        eos_ids=_eos_ids(config, generation),
    )


def _family(config: Any) -> str:
    names = list(getattr(config, "architectures", None) or [])
    if getattr(config, "quantization_config", None):
        raise ModelLoadError("quantised checkpoints are not supported; use the unquantised one or a GGUF file")
    family = next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)
    if family is None:
        named = ", ".join(names) or getattr(config, "model_type", "unknown")
        raise ModelLoadError(f"architecture {named} is not supported; supported are {', '.join(ARCHITECTURES)}")
    if getattr(config, "hidden_act", "silu") != "silu":
        raise ModelLoadError(f"activation {config.hidden_act} is not supported; supported is silu")
    return family


def _rope(config: Any) -> tuple[torch.Tensor, float]:
    """Inverse frequencies and the factor for cos and sin, by transformers' own scaling functions."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = config.rope_parameters
    kind = parameters.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise ModelLoadError(f"rope scaling {kind} is not supported; supported are {', '.join(ROPE_TYPES)}")
    if kind != "default":
        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return inv_freq.float(), float(scale)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / (parameters["rope_theta"] ** exponents), 1.0


def _window(config: Any) -> tuple[int | None, tuple[bool, ...]]:
    """The sliding window and the layers that have it; transformers lists them in layer_types where they differ."""
    num_layers = config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    windowed = tuple(t == "sliding_attention" for t in types) if types else (window is not None,) * num_layers
    if window is None or window >= config.max_position_embeddings or not any(windowed):
        return None, (False,) * num_layers
    return int(window), windowed


def _eos_ids(config: Any, generation: Any) -> tuple[int, ...]:
    eos = getattr(generation, "eos_token_id", None)
    if eos is None:
        eos = getattr(config, "eos_token_id", None)
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)
