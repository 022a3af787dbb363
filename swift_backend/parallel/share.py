"""Which part of the model does a rank hold? Whole heads, as much of the MLP's width, and all that is small.

Column-parallel projections (qkv, gate and up) are split by what they make, row-parallel ones (out and down) by what
they read, so that nothing is exchanged but the sums of the latter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from swift_backend.errors import ModelLoadError
from swift_backend.model.config import ModelConfig
from swift_backend.model.weights import Weights


@dataclass(frozen=True, slots=True)
class Share:
    """One of `size` ranks, counted from 0; rank 0 is the process with the engine."""

    rank: int
    size: int

    @property
    def first(self) -> bool:
        """Whether it has the head, and adds the biases that must be added once."""
        return self.rank == 0

    def of_config(self, config: ModelConfig) -> ModelConfig:
        """The rank's part of a model that refuse_indivisible lets pass."""
        return replace(
            config,
            num_heads=config.num_heads // self.size,
            num_kv_heads=config.num_kv_heads // self.size,
            intermediate_size=config.intermediate_size // self.size,
        )


def refuse_indivisible(config: ModelConfig, size: int) -> None:
    """ModelLoadError where the model cannot be split into so many equal parts."""
    counts = {
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "intermediate_size": config.intermediate_size,
    }
    for name, count in counts.items():
        if count % size:
            raise ModelLoadError(f"tensor_parallel is {size}, but the model's {name}, {count}, is no multiple of it")
    if config.qk_norm == "projection":
        raise ModelLoadError(
            f"tensor_parallel is {size}, but {config.family} norms all heads as one vector, which cannot be split; "
            "supported for such a model is 1"
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """What a rank reads of a tensor that is split along `dim`, or of one that only rank 0 adds (dim None).

    stored: its name in the checkpoint. kinds: the sizes of what lies side by side in it, each of which is split.
    """

    share: Share
    stored: str
    dim: int | None
    kinds: tuple[int, ...] = ()

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The stored shape of a tensor of which the rank has this one."""
        return tuple(size * self.share.size if dim == self.dim else size for dim, size in enumerate(shape))

    def __call__(self, stored: torch.Tensor) -> torch.Tensor:
        """The part, a copy."""
        if self.dim is None:
            return stored if self.share.first else torch.zeros_like(stored)
        parts = [kind.chunk(self.share.size, self.dim)[self.share.rank] for kind in stored.split(self.kinds, self.dim)]
        return torch.cat(parts, self.dim)


class ShareOfWeights:
    """A rank's part of a checkpoint, under the names and in the shapes that a decoder of its config asks for."""

    def __init__(self, whole: Weights, config: ModelConfig, share: Share) -> None:
        """config: of the whole model."""
        self._whole = whole
        self._cuts = {name: cut for layer in range(config.num_layers) for name, cut in _cuts(config, share, layer)}
        self._stored = dict(_moved_norms(config, share))

    def has(self, name: str) -> bool:
        return self._whole.has(name)

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See Weights.get."""
        cut = self._cuts.get(name)
        if cut is None:
            return self._whole.get(self._stored.get(name, name), shape)
        return self._whole.get(cut.stored, cut.whole(shape), cut)


def _cuts(config: ModelConfig, share: Share, layer: int) -> Iterator[tuple[str, Cut]]:
    """By name, of one layer."""
    names, prefix = config.names, config.names.layer.format(layer)
    heads = tuple(count * config.head_dim for count in (config.num_heads, config.num_kv_heads, config.num_kv_heads))
    width = config.intermediate_size
    # Head by head, query, key and value stay together as they lie.
    of_qkv = [(sum(heads),)] if names.interleaved else _kinds(names.qkv, heads)
    of_up = _kinds(names.up, (width, width) if config.gated else (width,))
    for name, kinds in (*zip(names.qkv, of_qkv, strict=True), *zip(names.up, of_up, strict=True)):
        for part in (f"{prefix}{name}.weight", f"{prefix}{name}.bias"):
            yield part, Cut(share, part, 0, kinds)
    for name, size in ((names.out, heads[0]), (names.down, width)):
        weight, bias = f"{prefix}{name}.weight", f"{prefix}{name}.bias"
        yield weight, Cut(share, weight, 1, (size,))
        yield bias, Cut(share, bias, None)


def _kinds(names: tuple[str, ...], sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Those in each tensor: one has all of them, or each has one."""
    return [sizes] if len(names) == 1 else [(size,) for size in sizes]


def _moved_norms(config: ModelConfig, share: Share) -> Iterator[tuple[str, str]]:
    """Norms of single heads: a rank's first head is another head of the model."""
    if config.qk_norm != "each head":
        return
    for layer in range(config.num_layers):
        prefix = config.names.layer.format(layer)
        for norm, heads in ((config.names.q_norm, config.num_heads), (config.names.k_norm, config.num_kv_heads)):
            count = heads // share.size
            for head in range(count):
                stored = head + share.rank * count
                yield f"{prefix}{norm}.norms.{head}.weight", f"{prefix}{norm}.norms.{stored}.weight"
