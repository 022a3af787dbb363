"""Which layer sets suit the text that is being written? A trellis over its latest tokens, grown between its rounds."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch

from swift_backend.runner import Runner
from swift_backend.sequence import Sequence
from swift_backend.speculation.cost_model import CostModel
from swift_backend.speculation.trellis import Trellis

# Few positions and coarse steps: what comes out has to win races on other texts anyway.
POSITIONS = 6
MOST_PATHS = 12
# A round is held up by so much of a plain token's time at most, or by one sublayer.
HOLD_UP = 0.25
# So many of what was found are worth a race; of a few positions all may be right by luck.
MOST_CANDIDATES = 3

Speed = Callable[[int, int, int], float]  # of a mask that was right at so many of so many positions


class Growth:
    """One trellis over positions of one sequence, whose extent must stay where it is meanwhile.

    After the sublayers come the paths, each of which is asked for its tokens.
    """

    def __init__(
        self, runner: Runner, costs: CostModel, may_skip: Seq[int], sequence: Sequence, positions: Seq[int]
    ) -> None:
        """may_skip: the sublayers that may be left out."""
        assert sequence.extent is not None
        self.sequence = sequence
        known = [sequence.tokens[position] for position in positions]
        self._shadow = runner.shadow(sequence.extent.start, known, positions)
        open_sublayers = frozenset(may_skip)
        self._trellis = Trellis(
            [self._shadow],
            costs.sublayer_shares(len(sequence.tokens)),
            lambda skip, sublayer: sublayer in open_sublayers,
            2 * costs.num_layers,
            least_share=1 / MOST_PATHS,
        )
        self._expected: torch.Tensor | None = None
        self._right: dict[int, int] = {}

    @property
    def done(self) -> bool:
        """Whether all paths have been asked."""
        return self._trellis.done and len(self._right) == len(self._trellis.paths)

    def step(self) -> None:
        """Take the next sublayer, or ask the next path."""
        if not self._trellis.done:
            self._trellis.step()
            return
        if self._expected is None:
            [self._expected] = self._shadow.logits(self._trellis.full).argmax(-1)
        path = self._trellis.paths[len(self._right)]
        [ids] = self._shadow.logits(path.states).argmax(-1)
        self._right[path.skip_mask] = int((ids == self._expected).sum())

    def candidates(self, speed: Speed) -> list[int]:
        """The masks of the fastest paths, by how often they were right; the fastest first."""
        tried = self._shadow.embedded.shape[0]
        return sorted(self._right, key=lambda mask: speed(mask, self._right[mask], tried), reverse=True)[
            :MOST_CANDIDATES
        ]


def seconds_to_grow(costs: CostModel, context: float) -> float:
    """What a whole growth is expected to take."""
    return costs.seconds(POSITIONS * (MOST_PATHS + 1), context)


def steps_at_once(costs: CostModel, context: float) -> int:
    """How many steps a round may be held up for."""
    step = seconds_to_grow(costs, context) / (2 * costs.num_layers)
    return max(1, int(HOLD_UP * costs.seconds(1, context) / step))
