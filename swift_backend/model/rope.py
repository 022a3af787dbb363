"""By how much does each position turn a head's dimensions, and which layers turn them?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from swift_backend.errors import ModelLoadError
from swift_backend.model.malformed import MALFORMED, reason
from swift_backend.model.windows import layer_types

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class Rope:
    """inv_freq: float32 [turned dimensions / 2], frequencies after scaling; scale multiplies cos and sin.

    longest: positions for which these are right, where a longer text would need others; None: any number.
    """

    inv_freq: torch.Tensor
    scale: float
    longest: int | None = None

    @property
    def width(self) -> int:
        """Dimensions of a head that are turned; the first half of them pairs with the second."""
        return 2 * self.inv_freq.shape[0]


def read_ropes(
    config: Any, head_dim: int, *, partial: bool, by_layer_type: bool
) -> tuple[tuple[Rope, ...], tuple[int | None, ...]]:
    """The model's ropes, and for each layer which of them it has, None for a layer without.

    partial: whether the family's model can turn part of a head. Raises ModelLoadError.
    """
    if by_layer_type:
        kinds = layer_types(config)
        used = sorted(set(kinds))
        ropes = tuple(_rope(config, head_dim, partial, kind) for kind in used)
        return ropes, tuple(used.index(kind) for kind in kinds)
    with_rope = getattr(config, "no_rope_layers", None) if config.model_type == "smollm3" else None
    turned = [1] * config.num_hidden_layers if with_rope is None else list(with_rope)
    if len(turned) < config.num_hidden_layers:
        raise ModelLoadError(
            f"no_rope_layers must have an entry for each of the {config.num_hidden_layers} layers, got {len(turned)}"
        )
    used_by = tuple(0 if one else None for one in turned[: config.num_hidden_layers])
    return (_rope(config, head_dim, partial, None),), used_by


def _rope(config: Any, head_dim: int, partial: bool, layer_type: str | None) -> Rope:
    parameters = config.rope_parameters
    named = f"rope_parameters {parameters}"
    try:
        of_type = parameters if layer_type is None else parameters[layer_type]
        rope = _scaled(config, of_type, layer_type) or _default(of_type, head_dim, partial)
    except MALFORMED as error:
        raise ModelLoadError(f"{named} cannot be computed: {reason(error)}") from error
    if rope.width != head_dim and not (partial and 0 < rope.width < head_dim):
        allowed = f"1 to {head_dim}" if partial else "all of them"
        raise ModelLoadError(f"{named} rotate {rope.width} of a head's {head_dim} dimensions; supported is {allowed}")
    if not torch.isfinite(rope.inv_freq * rope.scale).all():
        raise ModelLoadError(f"{named} give frequencies that are not finite")
    return rope


def _scaled(config: Any, parameters: Any, layer_type: str | None) -> Rope | None:
    """By transformers' own functions; None where nothing is scaled."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = parameters.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise ModelLoadError(f"rope scaling {kind} is not supported; supported are {', '.join(ROPE_TYPES)}")
    if kind == "default":
        return None
    by_type = {} if layer_type is None else {"layer_type": layer_type}
    inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), **by_type)
    # In a longer text longrope has other frequencies, also at the positions before: what is cached would be wrong.
    longest = parameters["original_max_position_embeddings"] if kind == "longrope" else None
    return Rope(inv_freq.float(), float(scale), longest)


def _default(parameters: Any, head_dim: int, partial: bool) -> Rope:
    """By the formula, as transformers' models do."""
    turned = int(head_dim * parameters.get("partial_rotary_factor", 1.0)) if partial else head_dim
    exponents = torch.arange(0, turned, 2, dtype=torch.int64).float() / turned
    return Rope(1.0 / (parameters["rope_theta"] ** exponents), 1.0)
