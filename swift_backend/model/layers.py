"""What does one residual sublayer compute? x + f(norm(x)), for attention and for the MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from swift_backend.batch import RaggedBatch
from swift_backend.kv_cache import KVCache
from swift_backend.model.attention import attend, rotate_
from swift_backend.model.linear import Linear

Rotary = tuple[torch.Tensor, torch.Tensor]  # cos and sin, float32 [positions or rows, 1, head_dim] each


class Norm:
    """Root-mean-square norm over the last dimension: x / sqrt(mean(x²) + eps) * weight, for weight [hidden].

    torch has a fused kernel on CUDA only. On a CPU the same formula, written as
    x * weight * √hidden / hypot(‖x‖, √(eps * hidden)), takes half as many small operations.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        """weight [hidden] (or [head_dim]) in the activations' dtype, on their device; eps is added to mean(x²)."""
        self._weight, self._eps = weight, eps
        self._fused = weight.device.type != "cpu"
        size = weight.shape[0]
        self._scaled = weight * size**0.5
        self._floor = torch.tensor((eps * size) ** 0.5, dtype=weight.dtype, device=weight.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._fused:
            return F.rms_norm(x, self._weight.shape, self._weight, self._eps)
        length = torch.linalg.vector_norm(x, 2, -1, True).hypot_(self._floor)
        return torch.mul(x, self._scaled).div_(length)


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

    def __call__(self, x: torch.Tensor, batch: RaggedBatch, cache: KVCache, rotary: Rotary) -> torch.Tensor:
        """x [rows, hidden] → x + attention; rotary as rotate_ wants it. Mutates the cache at batch.slots."""
        slots, heads = cache.slots[self.layer], self.num_heads
        projected = self.project(x, slots.dtype, rotary)
        slots.index_copy_(0, batch.slots, projected[:, heads:])
        views = batch.window_views if self.windowed else batch.views
        keys, values = cache.keys[self.layer], cache.values[self.layer]
        return x + self.out(attend(projected[:, :heads], keys, values, views, self.scale))

    def project(self, x: torch.Tensor, dtype: torch.dtype, rotary: Rotary) -> torch.Tensor:
        """Rotated queries and keys, and values, of x [rows, hidden]: dtype [rows, heads + 2 * kv_heads, head_dim]."""
        heads = self.num_heads
        projected = self.qkv(self.norm(x)).to(dtype).view(x.shape[0], -1, self.head_dim)
        query, key = projected[:, :heads], projected[:, heads : heads + self.num_kv_heads]
        if self.q_norm and self.k_norm:
            query.copy_(self.q_norm(query))
            key.copy_(self.k_norm(key))
        rotate_(projected[:, : heads + self.num_kv_heads], *rotary)
        return projected


@dataclass(frozen=True, slots=True)
class MlpSublayer:
    """down(silu(gate(x)) * up(x)), gate and up in one call."""

    norm: Norm
    gate_up: Linear
    down: Linear

    def __call__(self, x: torch.Tensor, batch: RaggedBatch, cache: KVCache, rotary: Rotary) -> torch.Tensor:
        """x [rows, hidden] → x + mlp; the other arguments are those of every sublayer and not used."""
        return self.apply(x)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, hidden] → x + mlp."""
        gate, up = self.gate_up(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


Sublayer = AttentionSublayer | MlpSublayer
