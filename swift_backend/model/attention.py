"""How do rows attend to the cache? The plain PyTorch reference, which runs on CPU and GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from swift_backend.batch import AttentionView

# Turns queries and keys [rows, heads, head_dim] in place by rows of rotary tables.
Rotate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
# Of query, keys, values, views and the scores' factor: see attend.
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, list[AttentionView], float], torch.Tensor]


def rotary_tables(inv_freq: torch.Tensor, length: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of every position, float32 [length, 1, head_dim] each; sin's first half is negated, see rotate_."""
    angles = torch.arange(length, device=inv_freq.device).float()[:, None] * inv_freq[None, :]
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((-sin, sin), dim=-1).unsqueeze(1)


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotary embedding, in place, of x [rows, heads, head_dim]; the first half of a head pairs with the second.

    cos, sin: [rows, 1, head_dim] rows of rotary_tables.
    """
    swapped = x.roll(x.shape[-1] // 2, -1)
    x.mul_(cos).addcmul_(swapped, sin)


def rotate_first_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """The same for tables of fewer dimensions than a head has: the others stay as they are."""
    rotate_(x[..., : cos.shape[-1]], cos, sin)


def rotate_by_part_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, part: slice) -> None:
    """The same for tables of several ropes side by side, of which `part` is one's."""
    rotate_first_(x, cos[..., part], sin[..., part])


def leave_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """The same for a layer without rope."""


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, views: list[AttentionView], scale: float
) -> torch.Tensor:
    """Attention of query [rows, heads, head_dim] over one layer's cache [1, kv_heads, slots, head_dim], one dtype.

    Returns [rows, heads * head_dim]; each view's rows see only that view's keys.
    """
    if len(views) == 1:
        return _attend_view(query, keys, values, views[0], scale)
    parts = [_attend_view(query[v.row_start : v.row_end], keys, values, v, scale) for v in views]
    return torch.cat(parts)


def _attend_view(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, view: AttentionView, scale: float
) -> torch.Tensor:
    rows, heads, head_dim = query.shape
    k = keys.narrow(2, view.key_start, view.key_end - view.key_start)
    v = values.narrow(2, view.key_start, view.key_end - view.key_start)
    if rows == 1:  # sees all its keys; the heads that share keys are stacked as rows, and nothing is copied
        q = query.view(1, k.shape[1], heads // k.shape[1], head_dim)
        return F.scaled_dot_product_attention(q, k, v, scale=scale).reshape(1, heads * head_dim)
    if view.mask is not None and view.stacked:
        return _attend_stacked(query, k, v, view.mask, scale)
    q = query.transpose(0, 1).unsqueeze(0)  # [1, heads, rows, head_dim]
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=view.mask, is_causal=view.causal, scale=scale, enable_gqa=heads != k.shape[1]
    )
    return out.squeeze(0).transpose(0, 1).reshape(rows, heads * head_dim)


def _attend_stacked(
    query: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Few rows over many keys: the heads that share keys are stacked as rows, so keys are read once for all."""
    rows, heads, head_dim = query.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    q = query.view(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3).reshape(1, kv_heads, group * rows, head_dim)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype), scale=scale)
    return out.view(kv_heads, group, rows, head_dim).permute(2, 0, 1, 3).reshape(rows, heads * head_dim)


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """cap * tanh(x / cap): nearly x while that is small, and never beyond cap."""
    return (x / cap).tanh_().mul_(cap)


def attend_capped(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    views: list[AttentionView],
    scale: float,
    cap: float,
) -> torch.Tensor:
    """attend with soft-capped scores, which torch's own attention does not have."""
    return torch.cat([_attend_capped(query[v.row_start : v.row_end], keys, values, v, scale, cap) for v in views])


def _attend_capped(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, view: AttentionView, scale: float, cap: float
) -> torch.Tensor:
    rows, heads, head_dim = query.shape
    k = keys[0].narrow(1, view.key_start, view.key_end - view.key_start)
    v = values[0].narrow(1, view.key_start, view.key_end - view.key_start)
    kv_heads, group = k.shape[0], heads // k.shape[0]
    q = query.view(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3).reshape(kv_heads, group * rows, head_dim)
    scores = soft_cap((q @ k.transpose(1, 2)).mul_(scale), cap).view(kv_heads, group, rows, -1)
    _hide(scores, view)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
    out = weights.view(kv_heads, group * rows, -1) @ v
    return out.view(kv_heads, group, rows, head_dim).permute(2, 0, 1, 3).reshape(rows, heads * head_dim)


def _hide(scores: torch.Tensor, view: AttentionView) -> None:
    """Makes the scores [kv_heads, group, rows, keys] of what a row may not see −inf, in place."""
    rows, keys = scores.shape[2:]
    if view.causal:
        ahead = torch.ones((rows, keys), dtype=torch.bool, device=scores.device).triu_(1)
        scores.masked_fill_(ahead, -torch.inf)
    elif view.mask is not None and view.stacked:
        scores.add_(view.mask.view(-1, rows, keys).to(scores.dtype))
    elif view.mask is not None:
        scores.masked_fill_(~view.mask, -torch.inf)
