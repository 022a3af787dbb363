"""What goes through the model in one pass? Rows of several sequences, flattened, with where they read and write."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property

import torch

# A draft and its row fit; longer groups are chunks of a prompt, whose masks must not be multiplied by the heads.
STACKED_ROWS = 16


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Tokens of one sequence in a pass: consecutive ones, or a tree of alternatives.

    token_ids: of the rows; row i writes the extent's slot extent_start + first + i. num_logits: for how many of the
    last rows logits are wanted. parents: the row before each row, −1 where that is what the cache holds, always an
    earlier one; None where each follows the one before it. A row sees the rows that lead to it, and is at position
    first + how many they are.
    """

    token_ids: Seq[int]
    first: int
    extent_start: int
    num_logits: int
    parents: Seq[int] | None = None

    @property
    def positions(self) -> list[int]:
        """Of each row."""
        if self.parents is None:
            return list(range(self.first, self.first + len(self.token_ids)))
        found: list[int] = []
        for parent in self.parents:
            found.append(self.first if parent < 0 else found[parent] + 1)
        return found

    def path(self, row: int) -> list[int]:
        """The group's rows that lead to this one, itself the last."""
        if self.parents is None:
            return list(range(row + 1))
        found: list[int] = []
        while row >= 0:
            found.append(row)
            row = self.parents[row]
        return found[::-1]

    def sees(self) -> list[list[bool]]:
        """Whether row i sees row j."""
        count = len(self.token_ids)
        seen: list[list[bool]] = []
        for row, parent in enumerate(range(-1, count - 1) if self.parents is None else self.parents):
            seen.append([False] * count if parent < 0 else list(seen[parent]))
            seen[row][row] = True
        return seen


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
class BatchShape:
    """What building a batch needs to know of the model: query heads per kv head, and the window if it has one."""

    heads_per_kv: int = 1
    window: int | None = None


@dataclass(frozen=True)
class RaggedBatch:
    """One pass: N rows in all.

    token_ids, positions, slots: int64 [N]; logit_rows: int64 [M], rows whose logits are wanted, in order.
    What rows see is said twice, for whoever attends; each is made when it is first asked for.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logit_rows: torch.Tensor
    groups: Seq[RowGroup]
    shape: BatchShape

    @cached_property
    def views(self) -> list[AttentionView]:
        """Attention of full layers: a view for each group."""
        return self._views(None)

    @cached_property
    def window_views(self) -> list[AttentionView]:
        """Of sliding-window layers; the same list without a window."""
        return self._views(self.shape.window) if self.shape.window else self.views

    @cached_property
    def table(self) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [N, 4], and int64 [any]: of each row where its extent begins, its group's first position, its own, and
        where in the second its path begins: the group's rows that lead to it, itself the last; −1 where that is all
        of them. On the CPU.
        """
        rows: list[tuple[int, int, int, int]] = []
        paths: list[int] = []
        for group in self.groups:
            for row, position in enumerate(group.positions):
                place = -1
                if group.parents is not None:
                    place = len(paths)
                    paths += group.path(row)
                rows.append((group.extent_start, group.first, position, place))
        return torch.tensor(rows, dtype=torch.int64), torch.tensor(paths, dtype=torch.int64)

    def _views(self, window: int | None) -> list[AttentionView]:
        made, start = [], 0
        for group in self.groups:
            bounds = (start, start + len(group.token_ids))
            made.append(_view(group, bounds, self.token_ids.device, self.shape.heads_per_kv, window))
            start = bounds[1]
        return made


def build_batch(groups: Seq[RowGroup], device: torch.device, shape: BatchShape) -> RaggedBatch:
    """Flatten the groups, in order, into one pass."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    for group in groups:
        start, count = len(tokens), len(group.token_ids)
        tokens += group.token_ids
        positions += group.positions
        slots += range(group.extent_start + group.first, group.extent_start + group.first + count)
        logit_rows += range(start + count - group.num_logits, start + count)

    def flat(column: list[int]) -> torch.Tensor:
        return torch.tensor(column, dtype=torch.int64, device=device)

    return RaggedBatch(flat(tokens), flat(positions), flat(slots), flat(logit_rows), tuple(groups), shape)


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
    if group.parents is None and group.first == 0 and (not window or end <= window):
        return AttentionView(*bounds, *keys, mask=None, causal=True)
    seen = _seen(group, oldest, window, device)
    if count > STACKED_ROWS:
        return AttentionView(*bounds, *keys, mask=seen, causal=False)
    mask = torch.zeros(seen.shape, device=device).masked_fill_(~seen, -torch.inf)
    return AttentionView(*bounds, *keys, mask=mask.repeat(heads_per_kv, 1), causal=False)


def _seen(group: RowGroup, oldest: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Which of the slots from `oldest` on, up to the group's last one, each row sees: bool [rows, slots]."""
    end = group.first + len(group.token_ids)
    if group.parents is None:
        columns = torch.arange(oldest, end, device=device)
        seen = columns[None, :] <= columns[group.first - oldest :, None]
    else:
        past = torch.ones((len(group.token_ids), group.first - oldest), dtype=torch.bool, device=device)
        seen = torch.cat((past, torch.tensor(group.sees(), device=device)), dim=1)
        columns = torch.tensor([*range(oldest, group.first), *group.positions], device=device)
    if window:
        seen &= columns[None, :] > columns[group.first - oldest :, None] - window
    return seen
