"""How does a whole sublayer run as one call of our kernels? Norm, products, rope, cache and attention; see csrc/."""

from __future__ import annotations

from dataclasses import replace

import torch

from swift_backend.batch import AttentionView, RaggedBatch
from swift_backend.kv_cache import KVCache
from swift_backend.model.layers import AttentionSublayer, MlpSublayer, Norm, Rotary
from swift_backend.model.linear import Linear, innermost
from swift_backend.model.norms import RmsNorm
from swift_backend.model.rowwise import PANEL, RowwiseLinear, kernel

# As in csrc/vector.h.
ACTIVATIONS = {"silu": 0, "gelu_fast": 1, "gelu_new": 1, "gelu_pytorch_tanh": 1, "relu": 2}
LANES = 8


class FusedMlp:
    """x + down(activation(gate) * up) of the normed x, as MlpSublayer."""

    def __init__(self, norm: RmsNorm, up: RowwiseLinear, activation: str, down: RowwiseLinear) -> None:
        self._parts = norm, up, down  # the plan has their addresses
        self._kernel = kernel()
        self._plan = self._kernel.mlp_plan(_of(norm), up.description, down.description, ACTIVATIONS[activation])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        self._kernel.mlp(self._plan, x.data_ptr(), y.data_ptr(), x.shape[0], torch.get_num_threads())
        return y


class FusedAttention:
    """x + attention of the normed x, as AttentionSublayer."""

    def __init__(self, sublayer: AttentionSublayer, window: int | None, rope: slice | None, tables: int) -> None:
        """rope: the columns of the rotary tables, of which there are `tables`, that turn this layer's heads."""
        self._parts = sublayer.norm, sublayer.qkv, sublayer.out, sublayer.q_norm, sublayer.k_norm
        assert isinstance(sublayer.qkv, RowwiseLinear) and isinstance(sublayer.out, RowwiseLinear)
        self._kernel, self._layer = kernel(), sublayer.layer
        self._plan = self._kernel.attention_plan(
            *(_of(norm) for norm in (sublayer.norm, sublayer.q_norm, sublayer.k_norm)),
            sublayer.qkv.description,
            sublayer.out.description,
            heads_of(sublayer, window),
            (rope.start, rope.stop - rope.start, tables) if rope else (0, 0, tables),
        )

    def __call__(self, x: torch.Tensor, batch: RaggedBatch, cache: KVCache, rotary: Rotary) -> torch.Tensor:
        """As AttentionSublayer; the cache must be float32."""
        x = x.contiguous()
        y = torch.empty_like(x)
        table, paths = batch.table
        tensors = (x, y, *rotary, cache.slots[self._layer], batch.slots, table, paths)
        self._kernel.attention(self._plan, *(one.data_ptr() for one in tensors), x.shape[0], torch.get_num_threads())
        return y


class RowwiseAttend:
    """Attention over the cache alone, for sublayers that have more around it than FusedAttention knows."""

    def __init__(self, sublayer: AttentionSublayer, window: int | None) -> None:
        self._kernel, self._heads = kernel(), heads_of(sublayer, window)

    def __call__(self, query: torch.Tensor, slots: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """query float32 [rows, heads, head_dim], of whose rows each is contiguous; slots: one layer's of the cache.

        Returns [rows, heads * head_dim].
        """
        rows, heads, head_dim = query.shape
        out = torch.empty(rows, heads * head_dim)
        table, paths = batch.table
        addresses = (out.data_ptr(), slots.data_ptr(), table.data_ptr(), paths.data_ptr())
        threads = torch.get_num_threads()
        self._kernel.attend(query.data_ptr(), query.stride(0), *addresses, rows, self._heads, threads)
        return out


class AloneAttend:
    """The same by torch, each row by itself: it is asked for as many keys as the row sees, and nothing else."""

    def __init__(self, sublayer: AttentionSublayer, window: int | None) -> None:
        self._attend, self._kv_heads, self._scale = sublayer.attend, sublayer.num_kv_heads, sublayer.scale
        self._window = window if sublayer.windowed else None

    def __call__(self, query: torch.Tensor, slots: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """See RowwiseAttend; any device and dtype."""
        parts, row = [], 0
        for group in batch.groups:
            for number, position in enumerate(group.positions):
                seen = [*range(group.first), *(group.first + one for one in group.path(number))]
                seen = seen[max(0, position - self._window + 1) :] if self._window else seen
                own = slots[torch.tensor(seen, device=slots.device) + group.extent_start].transpose(0, 1).unsqueeze(0)
                keys, values = own.split(self._kv_heads, dim=1)
                view = AttentionView(0, 1, 0, len(seen), mask=None, causal=False)
                parts.append(self._attend(query[row : row + 1], keys, values, [view], self._scale))
                row += 1
        return torch.cat(parts)


def heads_of(sublayer: AttentionSublayer, window: int | None) -> tuple[int | float, ...]:
    """As the kernel reads them; 0 where there is no window, and no cap."""
    seen = window if window and sublayer.windowed else 0
    shape = sublayer.num_heads, sublayer.num_kv_heads, sublayer.head_dim
    return *shape, seen, sublayer.scale, sublayer.cap or 0.0


def with_kernels(
    sublayer: AttentionSublayer, window: int | None, rope: slice | None, tables: int, invariant: bool
) -> AttentionSublayer:
    """The same sublayer, as far as our kernels know its parts; see FusedAttention.

    A family with more around its attention keeps torch's small operations, and has ours in between. invariant: rows
    must not depend on each other, whatever the device.
    """
    ours = sublayer.head_dim % LANES == 0 and isinstance(innermost(sublayer.qkv), RowwiseLinear)
    if not ours:
        return replace(sublayer, rowwise=AloneAttend(sublayer, window)) if invariant else sublayer
    norms = [sublayer.norm, *(norm for norm in (sublayer.q_norm, sublayer.k_norm) if norm is not None)]
    if not all(map(_knows, norms)) or not _are_plain(sublayer.qkv, sublayer.out):
        return replace(sublayer, rowwise=RowwiseAttend(sublayer, window))
    return replace(sublayer, fused=FusedAttention(sublayer, window, rope, tables))


def fused_mlp(sublayer: MlpSublayer, activation: str, gated: bool) -> MlpSublayer:
    """The same MLP, in one call where our kernels know its parts."""
    norm, up, down = sublayer.norm, sublayer.up, sublayer.down
    if not (gated and activation in ACTIVATIONS and isinstance(norm, RmsNorm) and _knows(norm)):
        return sublayer
    if not isinstance(up, RowwiseLinear) or not isinstance(down, RowwiseLinear) or down.inputs % PANEL:
        return sublayer
    return replace(sublayer, fused=FusedMlp(norm, up, activation, down))


def _knows(norm: Norm) -> bool:
    return isinstance(norm, RmsNorm) and norm.weight.dim() == 1 and norm.weight.shape[0] % LANES == 0


def _are_plain(*linears: Linear) -> bool:
    return all(isinstance(linear, RowwiseLinear) for linear in linears)


def _of(norm: Norm | None) -> tuple[int, float]:
    return (norm.weight.data_ptr(), norm.eps) if isinstance(norm, RmsNorm) else (0, 0.0)
