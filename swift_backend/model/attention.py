"""How do rows attend to the cache? The plain PyTorch reference, which runs on CPU and GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from swift_backend.batch import AttentionView


def rotary_tables(inv_freq: torch.Tensor, length: int, scale: float) -> torch.Tensor:
    """cos and sin of every position, float32 [length, 2, head_dim], halves repeated as rotate-half wants them."""
    angles = torch.arange(length, device=inv_freq.device).float()[:, None] * inv_freq[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin()), dim=1) * scale


def rotate(x: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [rows, heads, head_dim] with rotary [rows, 2, 1, head_dim]; first half pairs with second."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * rotary[:, 0] + turned * rotary[:, 1]


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, views: list[AttentionView], scale: float
) -> torch.Tensor:
    """Attention of query [rows, heads, head_dim] over one layer's cache [slots, kv_heads, head_dim].

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
    k = keys[view.key_start : view.key_end].transpose(0, 1).unsqueeze(0)  # [1, kv_heads, keys, head_dim]
    v = values[view.key_start : view.key_end].transpose(0, 1).unsqueeze(0)
    kv_heads = k.shape[1]
    if rows == 1:  # the query heads of a group are rows over the same keys, so no key is repeated
        q = query.view(1, kv_heads, heads // kv_heads, head_dim)
        return F.scaled_dot_product_attention(q, k, v, scale=scale).reshape(1, heads * head_dim)
    q = query.transpose(0, 1).unsqueeze(0)  # [1, heads, rows, head_dim]
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=view.mask, is_causal=view.causal, scale=scale, enable_gqa=heads != kv_heads
    )
    return out.squeeze(0).transpose(0, 1).reshape(rows, heads * head_dim)
