"""What does a field of a config say, for a family that heeds it? All raise ModelLoadError, naming field and value."""

from __future__ import annotations

from typing import Any

from swift_backend.errors import ModelLoadError
from swift_backend.model.activations import ACTIVATIONS
from swift_backend.model.families import Family


def read_heads(config: Any, family: Family) -> tuple[int, int]:
    """Of queries, and of keys and values."""
    heads = config.num_attention_heads
    kv_heads = config.num_key_value_heads if family.kv_heads else heads
    if heads % kv_heads:
        raise ModelLoadError(
            f"num_attention_heads must be a multiple of num_key_value_heads, got {heads} and {kv_heads}"
        )
    return heads, kv_heads


def read_head_dim(config: Any, family: Family) -> int:
    """Dimensions of a head."""
    head_dim = getattr(config, "head_dim", None) if family.head_dim else None
    return config.hidden_size // config.num_attention_heads if head_dim is None else int(head_dim)


def read_flag(config: Any, field: str | bool) -> bool:
    """What a family has whatever the config says, or what this field says."""
    return bool(getattr(config, field)) if isinstance(field, str) else field


def read_norm_eps(config: Any, field: str) -> float:
    """What is added to a mean square, or to a variance."""
    eps = getattr(config, field)
    if not 0 <= eps < float("inf"):
        raise ModelLoadError(f"{field} must be in [0, infinity), got {eps}")
    return float(eps)


def read_number(config: Any, field: str | None) -> float | None:
    """A factor or a cap; None where the family, or the config, has none."""
    value = None if field is None else getattr(config, field)
    if value is not None and not 0 < value < float("inf"):
        raise ModelLoadError(f"{field} must be in (0, infinity), got {value}")
    return None if value is None else float(value)


def read_score_scale(config: Any, family: Family, head_dim: int) -> float:
    """Factor of the attention scores."""
    squared = read_number(config, family.query_scalar) or float(head_dim)
    return read_number(config, family.attention_scale) or float(squared**-0.5)


def read_embedding_scale(config: Any, family: Family) -> float:
    """Factor of the embeddings."""
    if family.embedding_by_width:
        return float(config.hidden_size**0.5)
    return read_number(config, family.embedding_scale) or 1.0


def read_activation(config: Any, family: Family) -> str:
    """One of ACTIVATIONS."""
    name = getattr(config, family.activation)
    if name not in ACTIVATIONS:
        raise ModelLoadError(f"activation {name} is not supported; supported are {', '.join(ACTIVATIONS)}")
    return str(name)
