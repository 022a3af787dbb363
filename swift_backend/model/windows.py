"""Which layers see only the latest positions, and how many of them?"""

from __future__ import annotations

from typing import Any

from swift_backend.errors import ModelLoadError

LAYER_TYPES = ("full_attention", "sliding_attention")


def read_window(config: Any, windows: str) -> tuple[int | None, tuple[bool, ...]]:
    """The sliding window and the layers that have it, as transformers' model of the family reads them.

    windows: as in families.Family. Raises ModelLoadError for a window below 1, another layer type, and layers that
    slide without a window. A window as long as the context is none.
    """
    full = (False,) * config.num_hidden_layers
    if windows == "none":
        return None, full
    window = config.sliding_window
    # A mistral with layer_types is transformers' ministral.
    everywhere = windows == "all" and config.model_type != "ministral"
    windowed = (window is not None,) * len(full) if everywhere else _sliding(config)
    if not any(windowed):
        return None, full
    if type(window) is not int or window < 1:
        raise ModelLoadError(f"sliding_window must be a whole number >= 1 for layers that slide, got {window!r}")
    return (window, windowed) if window < config.max_position_embeddings else (None, full)


def layer_types(config: Any) -> tuple[str, ...]:
    """Of each layer; ModelLoadError for one that is not in LAYER_TYPES."""
    unknown = sorted(set(config.layer_types) - set(LAYER_TYPES))
    if unknown:
        raise ModelLoadError(f"layer type {unknown[0]} is not supported; supported are {', '.join(LAYER_TYPES)}")
    return tuple(config.layer_types)


def _sliding(config: Any) -> tuple[bool, ...]:
    return tuple(kind == "sliding_attention" for kind in layer_types(config))
