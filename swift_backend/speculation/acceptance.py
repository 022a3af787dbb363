"""Which drafted tokens survive? Pure functions of draft, target and random numbers; they know no model.

A draft is a tree: parents[i] is the node before node i, −1 for those that follow the committed tokens directly, and
always less than i. Children of one node are alternatives. Both functions return the accepted nodes, from the root on,
and one token of the full model: recovered where all that was drafted there was rejected, and bonus where nothing was.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch

Accepted = tuple[list[int], int]


def accept_coupled(draft: Seq[int], parents: Seq[int], target: Seq[int]) -> Accepted:
    """Accept a drafted token iff it is the token that the full model draws with the same noise.

    target[i + 1]: the full model's token after node i, and target[0] after the committed ones. Greedy decoding is the
    case without noise.
    """
    assert len(target) == len(draft) + 1 == len(parents) + 1
    path: list[int] = []
    token, at = target[0], -1
    for node, parent in enumerate(parents):
        if parent == at and draft[node] == token:
            path.append(node)
            token, at = target[node + 1], node
    return path, token


def accept_rejection(
    draft: Seq[int],
    parents: Seq[int],
    draft_probs: Seq[torch.Tensor | None] | None,
    target_probs: Seq[torch.Tensor] | torch.Tensor,
    accept_at: Callable[[int], float],
    draw_at: Callable[[int, torch.Tensor], int],
) -> Accepted:
    """Speculative sampling (Leviathan et al. 2023, Chen et al. 2023): accept with min(1, p/q), else recover.

    What a node leaves of p when it is rejected is the p of its next sibling (Miao et al. 2024, SpecInfer).

    draft_probs, target_probs: float64 [vocab] each, one more of the target's; a draft's probability must be the one
    it was drawn with, and None stands for a token that was found, not drawn: its q is one-hot. accept_at(node) is
    uniform in (0, 1); draw_at(node, weights) draws the token after a node (−1: the root) in proportion to weights.
    """
    assert len(target_probs) == len(draft) + 1 == len(parents) + 1
    path: list[int] = []
    p, at = target_probs[0], -1
    for node, parent in enumerate(parents):
        if parent != at:
            continue
        token, drawn = draft[node], None if draft_probs is None else draft_probs[node]
        q = _one_hot(p, token) if drawn is None else drawn
        if accept_at(node) * float(q[token]) < float(p[token]):
            path.append(node)
            p, at = target_probs[node + 1], node
        else:
            p = residual(p, q)
            p = p / p.sum()
    return path, draw_at(at, p)


def _one_hot(like: torch.Tensor, token: int) -> torch.Tensor:
    q = torch.zeros_like(like)
    q[token] = 1.0
    return q


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """max(0, p − q), not normalised, float64 [vocab]; p itself where rounding left nothing (p == q)."""
    rest = (p - q).clamp_min(0)
    return rest if float(rest.sum()) > 0 else p
