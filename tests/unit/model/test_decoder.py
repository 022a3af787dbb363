"""Which tensors of a checkpoint become the model, and which are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from swift_backend.errors import ModelLoadError
from swift_backend.model.config import read_config
from swift_backend.model.decoder import Decoder, load_decoder
from swift_backend.model.weights import Weights
from tests.conftest import save_tiny_model, tiny_config

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A tiny llama with a tied head."""
    return save_tiny_model(tmp_path, tiny_config("llama"))


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return load_decoder(read_config(directory), Weights.open(directory), dtype, torch.device("cpu"))


def change(directory: Path, **tensors: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Add, replace or (None) drop tensors of the checkpoint, `_` for `.` in the names; returns what is there now."""
    names = {"embedding": EMBEDDING, "head": HEAD, "norm": "model.norm.weight"}
    file = directory / "model.safetensors"
    changed = {**load_file(file), **{names[name]: tensor for name, tensor in tensors.items()}}
    kept = {name: tensor for name, tensor in changed.items() if tensor is not None}
    save_file(kept, file, {"format": "pt"})
    return kept


def test_a_tied_head_is_the_embedding(directory: Path) -> None:
    embedding = change(directory)[EMBEDDING]
    x = torch.randn(3, 48)
    torch.testing.assert_close(load(directory).head(x), x @ embedding.T)


def test_a_stored_head_that_differs_wins_over_the_config(directory: Path) -> None:
    head = change(directory, head=torch.randn(64, 48))[HEAD]
    x = torch.randn(3, 48)
    torch.testing.assert_close(load(directory).head(x), x @ head.T)


def test_an_embedding_that_is_stored_as_the_head_alone(directory: Path) -> None:
    embedding = change(directory)[EMBEDDING]
    change(directory, head=embedding.clone(), embedding=None)
    assert torch.equal(load(directory).embedding, embedding)


def test_a_stored_head_of_another_shape_is_refused(directory: Path) -> None:
    change(directory, head=torch.randn(65, 48))
    with pytest.raises(
        ModelLoadError, match=r"Tensor lm_head.weight in .* must have shape \[64, 48\], found \[65, 48\]"
    ):
        load(directory)


def test_a_missing_head_is_refused(tmp_path: Path) -> None:
    change(save_tiny_model(tmp_path, tiny_config("qwen2")), head=None)
    with pytest.raises(ModelLoadError, match=r"Tensor lm_head.weight with shape \[64, 48\] is not in the checkpoint"):
        load(tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_refused(directory: Path, bad: float) -> None:
    change(directory, norm=torch.tensor([1.0] * 47 + [bad]))
    with pytest.raises(ModelLoadError, match=r"Tensor model.norm.weight in .* holds NaN or infinity"):
        load(directory)


def test_a_number_that_the_dtype_cannot_hold_is_refused(directory: Path) -> None:
    change(directory, norm=torch.tensor([1.0] * 47 + [1e6]))
    load(directory, torch.bfloat16)
    with pytest.raises(ModelLoadError, match=r"Tensor model.norm.weight holds values beyond torch.float16; choose"):
        load(directory, torch.float16)


def test_the_rotary_tables_cover_the_context(directory: Path) -> None:
    for table in load(directory, torch.bfloat16).rotary:
        assert (table.shape, table.dtype) == ((256, 1, 8), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", ["granite", "gemma2", "gemma3_text"])
def test_scaled_embeddings_are_rounded_as_in_transformers(
    tmp_path: Path, architecture: str, dtype: torch.dtype
) -> None:
    """√48 is no number of bfloat16's; the head does not see the factor."""
    from transformers import AutoModelForCausalLM

    directory = save_tiny_model(tmp_path, tiny_config(architecture))
    ours = load(directory, dtype)
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).model
    expected = theirs.embed_tokens(torch.arange(64)) * getattr(theirs, "embedding_multiplier", 1.0)
    assert torch.equal(ours.embedding, expected)
    assert torch.equal(ours.head.weight_rows(torch.arange(64)), theirs.embed_tokens.weight)


def test_the_kernel_is_that_below_a_cap(tmp_path: Path) -> None:
    plain = load(save_tiny_model(tmp_path / "plain", tiny_config("llama")))
    capped = load(save_tiny_model(tmp_path / "capped", tiny_config("gemma2")))
    assert capped.kernel == plain.kernel == type(plain.head).__name__


@pytest.mark.parametrize("name", ["embed_out.weight", "lm_head.weight"])
def test_a_gpt_neox_may_store_its_head_under_either_name(tmp_path: Path, name: str) -> None:
    file = save_tiny_model(tmp_path, tiny_config("gpt_neox")) / "model.safetensors"
    tensors = load_file(file)
    [head] = [tensors.pop(one) for one in ("embed_out.weight", "lm_head.weight") if one in tensors]
    save_file({**tensors, name: head}, file, {"format": "pt"})
    x = torch.randn(3, 48)
    torch.testing.assert_close(load(tmp_path).head(x), x @ head.T)


def test_bytes_are_those_of_all_linears(tmp_path: Path) -> None:
    """Where attention and MLP are one sublayer, too: float32, and no bias or norm counts."""
    tensors = load_file(save_tiny_model(tmp_path, tiny_config("gpt_neox")) / "model.safetensors")
    matrices = sum(tensor.nbytes for tensor in tensors.values() if tensor.ndim == 2)
    assert load(tmp_path).num_bytes == matrices
