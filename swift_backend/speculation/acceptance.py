"""Which drafted tokens survive? Pure functions of draft, target and random numbers; they know no model.

Both return the committed tokens of the round: the accepted prefix of the draft, then one token of the full model,
recovered where the draft was rejected and bonus where it was accepted whole.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch


def accept_coupled(draft: Seq[int], target: Seq[int]) -> list[int]:
    """Accept a drafted token iff it is the token that the full model draws with the same noise.

    target: the full model's token after each prefix of the draft, one longer than the draft. Greedy decoding is the
    case without noise.
    """
    assert len(target) == len(draft) + 1
    accepted = 0
    while accepted < len(draft) and draft[accepted] == target[accepted]:
        accepted += 1
    return [*draft[:accepted], target[accepted]]


def accept_rejection(
    draft: Seq[int],
    draft_probs: Seq[torch.Tensor] | None,
    target_probs: Seq[torch.Tensor] | torch.Tensor,
    accept_at: Callable[[int], float],
    draw_at: Callable[[int, torch.Tensor], int],
) -> list[int]:
    """Speculative sampling (Leviathan et al. 2023, Chen et al. 2023): accept with min(1, p/q), else recover.

    draft_probs, target_probs: float64 [vocab] each, one more of the target's; a draft's probability must be the one
    it was drawn with, and None stands for a draft that was found, not drawn: its q is one-hot. accept_at(i) is uniform
    in (0, 1); draw_at(i, weights) draws a token in proportion to weights.
    """
    assert len(target_probs) == len(draft) + 1
    for i, token in enumerate(draft):
        p = target_probs[i]
        q = _one_hot(p, token) if draft_probs is None else draft_probs[i]
        if accept_at(i) * float(q[token]) >= float(p[token]):
            return [*draft[:i], draw_at(i, residual(p, q))]
    return [*draft, draw_at(len(draft), target_probs[len(draft)])]


def _one_hot(like: torch.Tensor, token: int) -> torch.Tensor:
    q = torch.zeros_like(like)
    q[token] = 1.0
    return q


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """max(0, p − q), not normalised, float64 [vocab]; p itself where rounding left nothing (p == q)."""
    rest = (p - q).clamp_min(0)
    return rest if float(rest.sum()) > 0 else p
