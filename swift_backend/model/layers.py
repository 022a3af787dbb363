"""What does one residual sublayer compute? x + f(norm(x)), for attention and for the MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from swift_backend.batch import RaggedBatch
from swift_backend.kv_cache import KVCache
from swift_backend.model.attention import attend, rotate
from swift_backend.model.linear import Linear


@dataclass(frozen=True, slots=True)
class Norm:
    """Root-mean-square norm with a weight [hidden]."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class AttentionSublayer:
    """Attention of layer `layer`; writes its rows' keys and values into the cache before it reads."""

    layer: int
    norm: Norm
    qkv: Linear
    out: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    windowed: bool

    def __call__(self, x: torch.Tensor, batch: RaggedBatch, cache: KVCache, rotary: torch.Tensor) -> torch.Tensor:
        """x [rows, hidden] → x + attention; rotary [rows, 2, 1, head_dim]. Mutates the cache at batch.slots."""
        keys, values = cache.keys[self.layer], cache.values[self.layer]
        heads, kv_heads = self.num_heads, self.num_kv_heads
        projected = self.qkv(self.norm(x)).to(keys.dtype).view(x.shape[0], heads + 2 * kv_heads, self.head_dim)
        if self.q_norm and self.k_norm:
            query, key = self.q_norm(projected[:, :heads]), self.k_norm(projected[:, heads : heads + kv_heads])
            turned = rotate(torch.cat((query, key), dim=1), rotary)
        else:
            turned = rotate(projected[:, : heads + kv_heads], rotary)
        keys.index_copy_(0, batch.slots, turned[:, heads:])
        values.index_copy_(0, batch.slots, projected[:, heads + kv_heads :])
        views = batch.window_views if self.windowed else batch.views
        return x + self.out(attend(turned[:, :heads], keys, values, views, self.scale))


@dataclass(frozen=True, slots=True)
class MlpSublayer:
    """down(silu(gate(x)) * up(x)), gate and up in one call."""

    norm: Norm
    gate_up: Linear
    down: Linear

    def __call__(self, x: torch.Tensor, batch: RaggedBatch, cache: KVCache, rotary: torch.Tensor) -> torch.Tensor:
        """x [rows, hidden] → x + mlp; the other arguments are those of every sublayer and not used."""
        gate, up = self.gate_up(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


Sublayer = AttentionSublayer | MlpSublayer
