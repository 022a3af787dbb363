"""Which sublayers can be left out together? Paths through the model, each of which saves another share of the time.

Dynamic programming over the sublayers, with the cosine to the full model's states as value, as in CLaSp (2025): each
sublayer is applied to the states of all paths at once, and of the paths that then have saved about as much, the one
that is nearest to the full model goes on. Losses need not add up: what a sublayer does is seen on the states that
earlier omissions left. Attentions and MLPs cost differently, so paths are compared by the time that they save.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F


class States(Protocol):
    """Positions of a text, as shadow.Shadow has them."""

    @property
    def embedded(self) -> torch.Tensor:
        """Their states before the first sublayer, [positions, hidden]."""
        ...

    def after(self, index: int, states: Seq[torch.Tensor]) -> list[torch.Tensor]:
        """What a sublayer makes of each candidate's states."""
        ...


@dataclass(frozen=True, slots=True)
class Path:
    """A way through the sublayers so far.

    saved: share of a plain token's time. states: behind the latest sublayer, [positions, hidden] of each text.
    """

    skip_mask: int
    saved: float
    states: list[torch.Tensor]
    nearness: float = 1.0  # mean cosine to the full model's states


class Trellis:
    """Advances through the model, sublayer by sublayer; between two of them anything else may run.

    full: the full model's states of each text so far. paths: the best ones so far.
    """

    def __init__(
        self,
        texts: Seq[States],
        saved: tuple[float, float],
        may_skip: Callable[[int, int], bool],
        num_sublayers: int,
        *,
        least_share: float = 0.0,
    ) -> None:
        """saved: the share of a plain token's time that an attention takes, and an MLP; positive.

        may_skip(mask, sublayer): whether a path with this mask may leave out this one, too. least_share: of the time,
        within which only the best path goes on.
        """
        self._texts, self._saved, self._may_skip = texts, saved, may_skip
        self.num_sublayers = num_sublayers
        # Paths are compared with those that save about as much; steps of a kind must not be too small to get on.
        self._share = max(*saved, least_share)
        self._next = 0
        self.full = [text.embedded for text in texts]
        self.paths: list[Path] = []

    @property
    def done(self) -> bool:
        """Whether all sublayers are behind us."""
        return self._next == self.num_sublayers

    @property
    def masks(self) -> list[int]:
        """What each path leaves out, the least first."""
        return [path.skip_mask for path in sorted(self.paths, key=lambda path: path.saved)]

    def step(self) -> None:
        """Take the next sublayer."""
        index, self._next = self._next, self._next + 1
        whole = Path(0, 0.0, self.full)
        after = self._after(index, [whole, *self.paths])
        self.full = after[0]
        saved = self._saved[index % 2]
        kept = [Path(path.skip_mask, path.saved, states) for path, states in zip(self.paths, after[1:], strict=True)]
        left_out = [
            Path(path.skip_mask | 1 << index, path.saved + saved, path.states)
            for path in (whole, *self.paths)
            if self._may_skip(path.skip_mask, index)
        ]
        self.paths = self._best([self._judged(path) for path in (*kept, *left_out)])

    def _after(self, index: int, paths: Seq[Path]) -> list[list[torch.Tensor]]:
        """The states of each path behind a sublayer."""
        by_text = [text.after(index, [path.states[i] for path in paths]) for i, text in enumerate(self._texts)]
        return [list(states) for states in zip(*by_text, strict=True)]

    def _judged(self, path: Path) -> Path:
        cosines = [F.cosine_similarity(one, full, dim=-1) for one, full in zip(path.states, self.full, strict=True)]
        return Path(path.skip_mask, path.saved, path.states, float(torch.cat(cosines).mean()))

    def _best(self, paths: Seq[Path]) -> list[Path]:
        """One path for each share of the time that is saved.

        Not simply the nearest of them, since that would be whoever saves least: what counts is how far it stays behind
        the best trades of nearness for time, the upper hull of them all.
        """
        hull = upper_hull([(0.0, 1.0), *((path.saved, path.nearness) for path in paths)])
        best: dict[int, tuple[float, Path]] = {}
        for path in sorted(paths, key=lambda path: -path.saved):
            share, behind = round(path.saved / self._share), height(hull, path.saved) - path.nearness
            if share not in best or behind < best[share][0]:
                best[share] = behind, path
        return [path for _, path in best.values()]


Point = tuple[float, float]


def upper_hull(points: Seq[Point]) -> list[Point]:
    """The corners of the lowest concave line above all points, from left to right."""
    corners: list[Point] = []
    for x, y in sorted(points):
        if corners and corners[-1][0] == x:
            corners.pop()
        while len(corners) > 1 and _rises(corners[-2], corners[-1]) <= _rises(corners[-2], (x, y)):
            corners.pop()
        corners.append((x, y))
    return corners


def _rises(left: Point, right: Point) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


def height(hull: Seq[Point], x: float) -> float:
    """Where the line through these corners is at x, which must lie within them."""
    right = min(max(bisect_left(hull, x, key=lambda corner: corner[0]), 1), len(hull) - 1)
    if len(hull) == 1:
        return hull[0][1]
    return hull[right - 1][1] + _rises(hull[right - 1], hull[right]) * (x - hull[right - 1][0])
