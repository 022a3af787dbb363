"""A GGUF file of another family becomes the checkpoint that it was made from, or is refused for what would be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from swift_backend.errors import ModelLoadError
from swift_backend.model.checkpoint import resolve_model
from swift_backend.model.config import read_config
from swift_backend.model.gguf_architectures import refuse_what_would_be_lost
from swift_backend.model.gguf_header import GgufHeader
from tests.conftest import save_tiny_model, tiny_config
from tests.unit.model.tiny_gguf import byte_level_vocabulary, write_gguf_of

GEMMA = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
# The file's architecture, the family and what is special about the checkpoint, and the file's own fields.
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "phi3": (
        "phi3",
        {"sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"rope.freq_base": 10000.0, "rope.dimension_count": 8},
    ),
    "gemma2": (
        "gemma2",
        {**GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        {"attention.key_length": 256, "attention.sliding_window": 12, "attn_logit_softcapping": 50.0},
    ),
    "gemma3": (
        "gemma3_text",
        {**GEMMA, "final_logit_softcapping": None, "sliding_window_pattern": 6, "rope_parameters": None},
        {"attention.key_length": 256, "attention.sliding_window": 12, "rope.freq_base": 1000000.0},
    ),
}


@pytest.mark.parametrize("arch", FAMILIES)
def test_a_file_becomes_what_it_was_made_from(tmp_path: Path, arch: str) -> None:
    family, special, metadata = FAMILIES[arch]
    config = tiny_config(family, **{**special, "vocab_size": len(byte_level_vocabulary()), "eos_token_id": 0})
    config.tie_word_embeddings = arch != "phi3"
    made_from = save_tiny_model(tmp_path / "model", config, draw_norms=True)
    source = write_gguf_of(made_from, tmp_path / "tiny.gguf", arch, metadata)
    directory = resolve_model(str(source), "float32", cache_dir=tmp_path / "cache", progress=lambda _: None)
    ours, theirs = read_config(directory), read_config(made_from)
    for field in ("family", "head_dim", "scale", "score_cap", "logit_cap", "window", "windowed", "rope_of", "norm_eps"):
        assert getattr(ours, field) == pytest.approx(getattr(theirs, field)), field
    for rope, expected in zip(ours.ropes, theirs.ropes, strict=True):
        torch.testing.assert_close(rope.inv_freq, expected.inv_freq)
    tensors, expected_tensors = (load_file(one / "model.safetensors") for one in (directory, made_from))
    assert tensors.keys() == expected_tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, expected_tensors[name], msg=name)


def refusal(arch: str, *tensors: str, **metadata: object) -> str:
    fields = {f"{arch}.{key.replace('__', '.')}": value for key, value in metadata.items()}
    header = GgufHeader({"general.architecture": arch, **fields}, frozenset(tensors))
    with pytest.raises(ModelLoadError) as raised:
        refuse_what_would_be_lost("file.gguf", header)
    return str(raised.value)


@pytest.mark.parametrize("arch", ["granite", "olmo2", "smollm3", "stablelm", "gptneox", "phi2", "gemma", "qwen3moe"])
def test_an_architecture_that_is_not_read_is_refused_by_name(arch: str) -> None:
    message = refusal(arch)
    assert message == (
        f"file.gguf (GGUF architecture {arch!r}) cannot be converted; "
        "supported are llama, qwen2, qwen3, phi3, gemma2, gemma3"
    )


@pytest.mark.parametrize(
    ("arch", "metadata", "message"),
    [
        ("gemma2", {"attention__key_length": 128}, "gemma2.attention.key_length must be absent or 256, got 128"),
        ("gemma2", {"attn_logit_softcapping": 9.0}, "gemma2.attn_logit_softcapping must be absent or 50.0, got 9.0"),
        ("gemma2", {"final_logit_softcapping": 9.0}, "gemma2.final_logit_softcapping must be absent or 30.0, got 9.0"),
        ("gemma3", {"attention__key_length": 128}, "gemma3.attention.key_length must be absent or 256, got 128"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "gemma3.final_logit_softcapping must be absent, got 30.0"),
        ("gemma3", {"rope__freq_base_swa": 5e3}, "gemma3.rope.freq_base_swa must be absent or 10000.0, got 5000.0"),
        (
            "gemma3",
            {"attention__sliding_window_pattern": 5},
            "gemma3.attention.sliding_window_pattern must be absent or 6, got 5",
        ),
        ("phi3", {"attention__sliding_window": 2047}, "phi3.attention.sliding_window must be absent or 0, got 2047"),
        (
            "phi3",
            {"embedding_length": 3072, "attention__head_count": 24, "rope__dimension_count": 96},
            "phi3.rope.dimension_count must be absent or 128, got 96",
        ),
    ],
)
def test_what_transformers_would_not_read_is_refused(arch: str, metadata: dict[str, object], message: str) -> None:
    start = f"file.gguf (GGUF architecture {arch!r}) cannot be converted: "
    assert refusal(arch, **metadata) == f"{start}{message}; use the model's Hugging Face directory instead."


@pytest.mark.parametrize("tensor", ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"])
def test_factors_of_a_rope_are_refused(tensor: str) -> None:
    assert refusal("phi3", tensor).startswith(f"file.gguf scales its rotary embedding ({tensor}), which converting ")
