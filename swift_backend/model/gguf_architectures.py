"""Which GGUF files can be carried over exactly? By architecture, and by what transformers takes for granted of it."""

from __future__ import annotations

from swift_backend.errors import ModelLoadError
from swift_backend.model.gguf_header import GgufHeader

ARCHITECTURES = ("llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3")
# transformers does not read these keys: the values with which what it computes is right, None where the key is missing.
# Gemma's key_length stands for its factor of the scores, which the file does not say; of 256, all but the 27B ones.
_TAKEN_FOR_GRANTED: dict[str, dict[str, tuple[object, ...]]] = {
    "phi3": {"attention.sliding_window": (None, 0)},
    "gemma2": {
        "attention.key_length": (None, 256),
        "attn_logit_softcapping": (None, 50.0),
        "final_logit_softcapping": (None, 30.0),
    },
    "gemma3": {
        "attention.key_length": (None, 256),
        "attention.sliding_window_pattern": (None, 6),
        "final_logit_softcapping": (None,),
        "rope.freq_base_swa": (None, 10000.0),
    },
}
_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def refuse_what_would_be_lost(name: str, header: GgufHeader) -> None:
    """ModelLoadError for a file, called `name`, of which converting would make another model."""
    _refuse_rope_scaling(name, header)
    architecture = header.architecture
    if architecture not in ARCHITECTURES:
        raise ModelLoadError(
            f"{name} (GGUF architecture {architecture!r}) cannot be converted; supported are {', '.join(ARCHITECTURES)}"
        )
    for key, allowed in _allowed_values(header).items():
        value = header.of_architecture(key)
        if value not in allowed:
            values = " or ".join("absent" if one is None else str(one) for one in allowed)
            raise ModelLoadError(
                f"{name} (GGUF architecture {architecture!r}) cannot be converted: {architecture}.{key} must be "
                f"{values}, got {value}; use the model's Hugging Face directory instead."
            )


def _allowed_values(header: GgufHeader) -> dict[str, tuple[object, ...]]:
    allowed = dict(_TAKEN_FOR_GRANTED.get(header.architecture, {}))
    if header.architecture == "phi3":
        width, heads = (header.of_architecture(key) for key in ("embedding_length", "attention.head_count"))
        if isinstance(width, int) and isinstance(heads, int) and heads > 0:
            allowed["rope.dimension_count"] = (None, width // heads)  # transformers would turn the whole head
    return allowed


def _refuse_rope_scaling(name: str, header: GgufHeader) -> None:
    """Long-context scaling is stored as factors that transformers drops: the model would run, and be wrong."""
    kind = header.of_architecture("rope.scaling.type")
    factors = next((tensor for tensor in _ROPE_FACTORS if tensor in header.tensor_names), None)
    if factors or kind not in (None, "none"):
        raise ModelLoadError(
            f"{name} scales its rotary embedding ({kind or factors}), which converting would lose: "
            "use the model's Hugging Face directory instead."
        )
