"""What the ranks compute of their parts adds up to what the whole model computes; here they are threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from swift_backend.batch import RowGroup
from swift_backend.errors import ModelLoadError
from swift_backend.kv_cache import KVCache
from swift_backend.model.config import ModelConfig, read_config
from swift_backend.model.decoder import load_decoder
from swift_backend.model.weights import Weights
from swift_backend.parallel.share import Share, ShareOfWeights, refuse_indivisible
from swift_backend.runner import Runner
from tests.conftest import ARCHITECTURES, save_tiny_model, tiny_config

CPU = torch.device("cpu")
TOKENS = [5, 9, 17, 3, 44, 21, 8, 60, 33, 12, 7, 5, 19, 28, 40, 2]
# Each with what is split in a way of its own: biases, fused projections, norms of heads, parallel sublayers.
MODELS: dict[str, dict[str, Any]] = {
    **{name: {} for name in (*ARCHITECTURES, "granite", "smollm3", "phi3", "gemma2", "gemma3_text", "gpt_neox")},
    "stablelm": {"use_parallel_residual": True},
}


class Sums:
    """add_up of so many threads."""

    def __init__(self, size: int) -> None:
        self._barrier, self._parts = Barrier(size), [torch.empty(0)] * size

    def of(self, rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def add_up(part: torch.Tensor) -> torch.Tensor:
            self._parts[rank] = part
            self._barrier.wait(60)
            total = torch.stack(self._parts).sum(0)
            self._barrier.wait(60)
            return total

        return add_up


def runner(config: ModelConfig, *of_decoder: Any, **options: Any) -> Runner:
    decoder = load_decoder(config, *of_decoder, **options)
    cache = KVCache(config.num_layers, 32, config.num_kv_heads, config.head_dim, torch.float32, CPU)
    return Runner(decoder, cache, CPU)


def rank_of(directory: Path, share: Share, sums: Sums) -> Runner:
    config = read_config(directory)
    weights = ShareOfWeights(Weights.open(directory), config, share)
    add_up = sums.of(share.rank)
    return runner(share.of_config(config), weights, torch.float32, CPU, add_up=add_up, with_head=share.first)


def bytes_of(one: Runner) -> int:
    return sum(linear.num_bytes for sublayer in one.decoder.sublayers for linear in sublayer.linears)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_the_ranks_say_what_the_whole_model_says(tmp_path: Path, name: str, size: int) -> None:
    heads = {"num_attention_heads": 6, "num_key_value_heads": 6, "num_hidden_layers": 3}
    directory = save_tiny_model(tmp_path, tiny_config(name, **heads, **MODELS[name]), draw_norms=True)
    whole = runner(read_config(directory), Weights.open(directory), torch.float32, CPU)
    sums = Sums(size)
    ranks = [rank_of(directory, Share(rank, size), sums) for rank in range(size)]
    group = RowGroup(TOKENS, 0, 0, len(TOKENS))
    logits = [replace(group, num_logits=0)] * (size - 1)
    with ThreadPoolExecutor(size) as threads:
        first, *_ = threads.map(lambda one, given: one.forward([given]), ranks, [group, *logits])
    torch.testing.assert_close(first, whole.forward([group]), rtol=1e-4, atol=1e-4)
    assert [size * bytes_of(one) for one in ranks] == [bytes_of(whole)] * size
    assert [size * one.cache.num_bytes for one in ranks] == [whole.cache.num_bytes] * size


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({}, 4, "tensor_parallel is 4, but the model's num_attention_heads, 6, is no multiple of it"),
        ({}, 3, "tensor_parallel is 3, but the model's num_key_value_heads, 2, is no multiple of it"),
        ({"intermediate_size": 97}, 2, "tensor_parallel is 2, but the model's intermediate_size, 97, is no multiple"),
    ],
)
def test_what_cannot_be_split_evenly_is_refused(
    tmp_path: Path, changes: dict[str, int], size: int, message: str
) -> None:
    tiny_config("llama", **changes).save_pretrained(tmp_path)
    config = read_config(tmp_path)
    with pytest.raises(ModelLoadError, match=message):
        refuse_indivisible(config, size)
    refuse_indivisible(config, 1)


def test_a_norm_of_all_heads_is_refused(tmp_path: Path) -> None:
    tiny_config("olmo2").save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="tensor_parallel is 2, but olmo2 norms all heads as one vector"):
        refuse_indivisible(read_config(tmp_path), 2)


def test_a_rank_reads_no_more_than_its_part(tmp_path: Path) -> None:
    """What is damaged in another's part is for that one to find."""
    from safetensors.torch import load_file, save_file

    save_tiny_model(tmp_path, tiny_config("llama"))
    file, name = tmp_path / "model.safetensors", "model.layers.0.mlp.down_proj.weight"
    tensors = load_file(file)
    tensors[name][:, -1] = torch.nan
    save_file(tensors, file, {"format": "pt"})
    config = read_config(tmp_path)
    first, last = (ShareOfWeights(Weights.open(tmp_path), config, Share(rank, 2)) for rank in range(2))
    assert torch.equal(first.get(name, (48, 48)), tensors[name][:, :48])
    with pytest.raises(ModelLoadError, match="holds NaN or infinity"):
        last.get(name, (48, 48))
    with pytest.raises(ModelLoadError, match=r"must have shape \[48, 94\], found \[48, 96\]"):
        first.get(name, (48, 47))
