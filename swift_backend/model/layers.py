"""What does one residual sublayer compute? x + f(norm(x)), for attention and for the MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from swift_backend.batch import RaggedBatch
from swift_backend.kv_cache import KVCache
from swift_backend.model.activations import Activation
from swift_backend.model.attention import Attend, Rotate
from swift_backend.model.linear import Linear

Rotary = tuple[torch.Tensor, torch.Tensor]  # cos and sin, float32 [positions or rows, 1, dimensions] each
Norm = Callable[[torch.Tensor], torch.Tensor]  # over the last dimension
# A whole sublayer in one call, of what AttentionSublayer takes, and of x alone; and attention of queries
# [rows, heads, head_dim] over one layer's slots of the cache.
FusedAttention = Callable[[torch.Tensor, RaggedBatch, KVCache, Rotary], torch.Tensor]
FusedMlp = Callable[[torch.Tensor], torch.Tensor]
Over = Callable[[torch.Tensor, torch.Tensor, RaggedBatch], torch.Tensor]


@dataclass(frozen=True, slots=True)
class AttentionSublayer:
    """Attention of layer `layer`; writes its rows' keys and values into the cache before it reads.

    out: with what follows it before it is added: a norm, a factor. attend: scores soft-capped by cap, if that is set.
    fused: does all of it, in place of the parts; rowwise: in place of attend.
    """

    layer: int
    norm: Norm
    qkv: Linear
    out: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    rotate: Rotate
    attend: Attend
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    cap: float | None
    windowed: bool
    fused: FusedAttention | None = None
    rowwise: Over | None = None

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self.qkv, self.out

    def __call__(self, x: torch.Tensor, batch: RaggedBatch, cache: KVCache, rotary: Rotary) -> torch.Tensor:
        """x [rows, hidden] → x + attention; rotary as rotate_ wants it. Mutates the cache at batch.slots."""
        if self.fused is not None:
            return self.fused(x, batch, cache, rotary)
        slots, heads = cache.slots[self.layer], self.num_heads
        projected = self.project(x, slots.dtype, rotary)
        slots.index_copy_(0, batch.slots, projected[:, heads:])
        if self.rowwise is not None:
            return x + self.out(self.rowwise(projected[:, :heads], slots, batch))
        views = batch.window_views if self.windowed else batch.views
        keys, values = cache.keys[self.layer], cache.values[self.layer]
        return x + self.out(self.attend(projected[:, :heads], keys, values, views, self.scale))

    def project(self, x: torch.Tensor, dtype: torch.dtype, rotary: Rotary) -> torch.Tensor:
        """Rotated queries and keys, and values, of x [rows, hidden]: dtype [rows, heads + 2 * kv_heads, head_dim]."""
        heads = self.num_heads
        projected = self.qkv(self.norm(x)).to(dtype).view(x.shape[0], -1, self.head_dim)
        query, key = projected[:, :heads], projected[:, heads : heads + self.num_kv_heads]
        if self.q_norm and self.k_norm:
            query.copy_(self.q_norm(query))
            key.copy_(self.k_norm(key))
        self.rotate(projected[:, : heads + self.num_kv_heads], *rotary)
        return projected


@dataclass(frozen=True, slots=True)
class MlpSublayer:
    """down(activate(up(x))); with a gate, up makes gate and up in one call, and activate multiplies them.

    fused: does all of it, and adds x.
    """

    norm: Norm
    up: Linear
    activate: Activation
    down: Linear
    fused: FusedMlp | None = None

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self.up, self.down

    def __call__(self, x: torch.Tensor, batch: RaggedBatch, cache: KVCache, rotary: Rotary) -> torch.Tensor:
        """x [rows, hidden] → x + mlp; the other arguments are those of every sublayer and not used."""
        return x + self.added(x) if self.fused is None else self.fused(x)

    def added(self, x: torch.Tensor) -> torch.Tensor:
        """What it adds to x [rows, hidden]."""
        return self.down(self.activate(self.up(self.norm(x))))


@dataclass(frozen=True, slots=True)
class ParallelSublayer:
    """Attention and MLP of the same state, x + attention(x) + mlp(x): skipped, or computed, as one."""

    attention: AttentionSublayer
    mlp: MlpSublayer

    @property
    def linears(self) -> tuple[Linear, ...]:
        return *self.attention.linears, *self.mlp.linears

    def __call__(self, x: torch.Tensor, batch: RaggedBatch, cache: KVCache, rotary: Rotary) -> torch.Tensor:
        """x [rows, hidden] → x + attention + mlp; see AttentionSublayer."""
        return self.attention(x, batch, cache, rotary) + self.mlp.added(x)


@dataclass(frozen=True, slots=True)
class NoSublayer:
    """Holds the MLP's place in a layer whose ParallelSublayer has computed it."""

    linears: tuple[Linear, ...] = ()

    def __call__(self, x: torch.Tensor, batch: RaggedBatch, cache: KVCache, rotary: Rotary) -> torch.Tensor:
        return x


Sublayer = AttentionSublayer | MlpSublayer | ParallelSublayer | NoSublayer
