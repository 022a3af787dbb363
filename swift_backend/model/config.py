"""What does the model look like? With the modules that it imports, what reads Hugging Face configs."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift_backend.errors import ModelLoadError
from swift_backend.model.config_fields import (
    read_activation,
    read_embedding_scale,
    read_flag,
    read_head_dim,
    read_heads,
    read_norm_eps,
    read_number,
    read_score_scale,
)
from swift_backend.model.families import ARCHITECTURES, FAMILIES, MODEL_TYPES
from swift_backend.model.malformed import MALFORMED, reason
from swift_backend.model.rope import Rope, read_ropes
from swift_backend.model.tensor_names import TensorNames
from swift_backend.model.windows import read_window

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

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of residual sublayers; differences between families are flags.

    names: of the checkpoint's tensors. context_length: positions that the model was made for, prompt and answer
    together (max_position_embeddings, or where longrope would change its frequencies).
    ropes: those that the layers have; rope_of: which one of them each layer has, None where it has none.
    qkv_bias, output_bias, mlp_bias: whether these projections add a bias. layer_norm, norm_offset, qk_norm, gated:
    as in families.Family; activation: one of ACTIVATIONS.
    parallel: attention and MLP of a layer read the same state, and are one sublayer.
    scale: factor of the attention scores; score_cap, logit_cap: x becomes cap * tanh(x / cap), None: it does not.
    embedding_scale, residual_scale: factors of embeddings, and of what sublayers add; logits are divided by
    logit_divisor.
    tied_head: the embedding is also the head, unless the checkpoint stores a head that differs.
    window: number of positions that a sliding-window layer sees, its own included; windowed: which layers those are.
    eos_ids: tokens that end an answer: generation_config.json's, else config.json's; an empty tuple is "none".
    """

    family: str
    names: TensorNames
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    layer_norm: bool
    norm_offset: float
    context_length: int
    ropes: tuple[Rope, ...]
    rope_of: tuple[int | None, ...]
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: str | None
    activation: str
    gated: bool
    parallel: bool
    scale: float
    score_cap: float | None
    logit_cap: float | None
    embedding_scale: float
    residual_scale: float
    logit_divisor: float
    tied_head: bool
    window: int | None
    windowed: tuple[bool, ...]
    eos_ids: tuple[int, ...]


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
        raise ModelLoadError(f"{directory} has no usable config.json: {reason(error.__cause__ or error)}") from error
    except MALFORMED as error:
        raise ModelLoadError(f"{directory} has no usable config.json: {reason(error)}") from error
    return from_hf(config, fields)


def from_hf(config: Any, generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """Translate a transformers config object (and generation_config.json's fields, for the end-of-sequence ids).

    Raises ModelLoadError for: another model type or architecture, or two that contradict each other; a quantised
    checkpoint; attention in both directions; an activation not in ACTIVATIONS; a size that is no whole number in
    [1, 2**31); query heads that are no multiple of the key/value heads; a norm's eps that is negative or not finite; a
    factor or cap that is not positive or not finite; a rope or a window that read_ropes or read_window refuses; end ids
    that are no ids.
    """
    name = _family(config)
    family = FAMILIES[name]
    _check_sizes(config.to_dict())
    heads, kv_heads = read_heads(config, family)
    head_dim = read_head_dim(config, family)
    ropes, rope_of = read_ropes(
        config, head_dim, partial=family.partial_rotary, by_layer_type=family.rope_by_layer_type
    )
    window, windowed = read_window(config, family.windows)
    parallel = read_flag(config, family.parallel or False)
    return ModelConfig(
        family=name,
        names=family.names.with_one_norm() if parallel and family.one_norm else family.names,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=read_norm_eps(config, family.norm_eps),
        layer_norm=family.layer_norm,
        norm_offset=family.norm_offset,
        context_length=_context_length(config, ropes),
        ropes=ropes,
        rope_of=rope_of,
        qkv_bias=read_flag(config, family.qkv_bias),
        output_bias=read_flag(config, family.output_bias),
        mlp_bias=read_flag(config, family.mlp_bias),
        qk_norm=family.qk_norm if family.qk_norm_if is None or read_flag(config, family.qk_norm_if) else None,
        activation=read_activation(config, family),
        gated=family.gated,
        parallel=parallel,
        scale=read_score_scale(config, family, head_dim),
        score_cap=read_number(config, family.score_cap),
        logit_cap=read_number(config, family.logit_cap),
        embedding_scale=read_embedding_scale(config, family),
        residual_scale=read_number(config, family.residual_scale) or 1.0,
        logit_divisor=read_number(config, family.logit_divisor) or 1.0,
        tied_head=config.tie_word_embeddings,
        window=window,
        windowed=windowed,
        eos_ids=_eos_ids(config, generation or {}),
    )


def _context_length(config: Any, ropes: tuple[Rope, ...]) -> int:
    """As long as the frequencies are right; a shorter context than the config's is told."""
    longest = int(config.max_position_embeddings)
    shortened = min([longest, *(rope.longest for rope in ropes if rope.longest is not None)])
    if shortened < longest:
        _log.warning(
            "The context is %d tokens, and not %d: in a longer text, longrope has other frequencies at every position.",
            shortened,
            longest,
        )
    return shortened


def _read_object(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read: {reason(error)}") from error
    if not isinstance(fields, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return fields


def _check_sizes(fields: Mapping[str, Any]) -> None:
    """Each size that is given must be one; a missing one is transformers' default, or refused by transformers."""
    for name in SIZES:
        value = fields.get(name)
        if value is not None and not (type(value) is int and 1 <= value < SIZE_LIMIT):
            raise ModelLoadError(
                f"{name} of the model's config must be a whole number in [1, {SIZE_LIMIT}), got {value!r}"
            )


def _family_of(model_type: object) -> str:
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise ModelLoadError(f"model type {model_type} is not supported; supported are {', '.join(FAMILIES)}")
    return MODEL_TYPES[model_type]


def _family(config: Any) -> str:
    _refuse_quantised(config)
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
    if getattr(config, "use_bidirectional_attention", False):
        raise ModelLoadError("use_bidirectional_attention is not supported; supported is false")
    return family


def _refuse_quantised(config: Any) -> None:
    """Whose weights are packed in ways that only their own kernels read."""
    quantised = getattr(config, "quantization_config", None) or getattr(config, "compression_config", None)
    if not quantised:
        return
    fields = quantised if isinstance(quantised, Mapping) else getattr(quantised, "__dict__", {})
    method = fields.get("quant_method") or "of an unnamed method"
    raise ModelLoadError(
        f"quantised checkpoints ({getattr(method, 'value', method)}) are not supported; supported are float32, "
        "bfloat16 and float16 ones, and GGUF files, which are dequantised"
    )


def _eos_ids(config: Any, generation: Mapping[str, Any]) -> tuple[int, ...]:
    eos = generation.get("eos_token_id")
    if eos is None:
        eos = config.eos_token_id
    ids = [] if eos is None else eos if isinstance(eos, list | tuple) else [eos]
    if not all(type(one) is int for one in ids):
        raise ModelLoadError(f"eos_token_id must be a token id or a list of them, got {eos!r}")
    return tuple(ids)
