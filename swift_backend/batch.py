"""What goes through the model in one pass? Rows of several sequences, flattened, with where they read and write."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

# A draft and its row fit; longer groups are chunks of a prompt, whose masks must not be multiplied by the heads.
STACKED_ROWS = 8


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Consecutive tokens of one sequence in a pass.

    token_ids: the tokens, at positions first, first + 1, …; the extent's slot of position p is extent_start + p.
    num_logits: for how many of the last rows logits are wanted.
    """

    token_ids: Seq[int]
    first: int
    extent_start: int
    num_logits: int


@dataclass(frozen=True, slots=True)
class AttentionView:
    """What the rows [row_start, row_end) see: cache slots [key_start, key_end).

    mask: None when every row sees every key. For up to STACKED_ROWS rows float32 [heads per kv head * rows, keys], 0
        where a row may look and −inf elsewhere, for queries whose heads of one group are stacked as rows; for more
        rows bool [rows, keys], True where a row may look.
    causal: rows and keys are the same positions and each row sees itself and what is before it.
    """

    row_start: int
    row_end: int
    key_start: int
    key_end: int
    mask: torch.Tensor | None
    causal: bool

    @property
    def stacked(self) -> bool:
        """Whether the mask is for stacked heads."""
        return self.mask is not None and self.mask.dtype != torch.bool


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """One pass: N rows in all.

    token_ids, positions, slots: int64 [N]; logit_rows: int64 [M], rows whose logits are wanted, in order;
    views: attention of full layers; window_views: of sliding-window layers (the same list without a window).
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logit_rows: torch.Tensor
    views: list[AttentionView]
    window_views: list[AttentionView]


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What building a batch needs to know of the model: query heads per kv head, and the window if it has one."""

    heads_per_kv: int = 1
    window: int | None = None


def build_batch(groups: Seq[RowGroup], device: torch.device, shape: BatchShape) -> RaggedBatch:
    """Flatten the groups, in order, into one pass."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    bounds: list[tuple[int, int]] = []
    for group in groups:
        start, count = len(tokens), len(group.token_ids)
        tokens += group.token_ids
        positions += range(group.first, group.first + count)
        slots += range(group.extent_start + group.first, group.extent_start + group.first + count)
        logit_rows += range(start + count - group.num_logits, start + count)
        bounds.append((start, start + count))

    def views(window: int | None) -> list[AttentionView]:
        return [_view(g, rows, device, shape.heads_per_kv, window) for g, rows in zip(groups, bounds, strict=True)]

    full = views(None)
    windowed = views(shape.window) if shape.window else full

    def flat(column: list[int]) -> torch.Tensor:
        return torch.tensor(column, dtype=torch.int64, device=device)

    return RaggedBatch(flat(tokens), flat(positions), flat(slots), flat(logit_rows), full, windowed)


def _view(
    group: RowGroup, bounds: tuple[int, int], device: torch.device, heads_per_kv: int, window: int | None
) -> AttentionView:
    """The keys that a group's rows see: all before and themselves, at most `window` of them."""
    count = bounds[1] - bounds[0]
    end = group.first + count
    oldest = max(0, group.first - window + 1) if window else 0
    keys = (group.extent_start + oldest, group.extent_start + end)
    if count == 1:
        return AttentionView(*bounds, *keys, mask=None, causal=False)
    if group.first == 0 and (not window or end <= window):
        return AttentionView(*bounds, *keys, mask=None, causal=True)
    rows = torch.arange(group.first, end, device=device)[:, None]
    columns = torch.arange(oldest, end, device=device)[None, :]
    seen = columns <= rows
    if window:
        seen &= columns > rows - window
    if count > STACKED_ROWS:
        return AttentionView(*bounds, *keys, mask=seen, causal=False)
    mask = torch.zeros(seen.shape, device=device).masked_fill_(~seen, -torch.inf)
    return AttentionView(*bounds, *keys, mask=mask.repeat(heads_per_kv, 1), causal=False)
