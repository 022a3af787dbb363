"""Which layer set drafts fastest, judged by how little each sublayer changes the states, and by what it costs?

A 0/1 knapsack whose value is tokens per second. Attentions cost alike and so do MLPs; so with a of one kind and m of
the other left out, the best choice are those that change the states least, and only the counts have to be tried. That
the losses of sublayers add up is an approximation (KnapSpec, 2026, makes it too); `decay` says what a loss does to
acceptance, and is learnt from layer sets that were tried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from swift_backend.speculation.cost_model import CostModel
from swift_backend.speculation.layer_set import LayerSet, open_sublayers

Floats = NDArray[np.float64]
FIRST_DECAY = 1.0
# How fast what is learnt of `decay` moves; a trial of some ten positions says little, and a set that changes the states
# by less than LEAST_LOSS nothing.
RATE = 0.3
LEAST_LOSS = 0.01


def loss(layer_set: LayerSet, similarity: torch.Tensor) -> float:
    """How much the sublayers that are left out change the states, the sum of 1 − cosine; similarity as in choose."""
    change = _change(similarity)
    return sum(float(change[one]) for one in range(2 * layer_set.num_layers) if not layer_set.keeps(one))


@dataclass(slots=True)
class Knapsack:
    """Chooses layer sets. protected: layers spared at each end; most_draft_tokens: the longest draft that counts.

    decay: a set whose loss is x is expected to have exp(−decay * x) of its drafted tokens accepted. parallel: MLPs are
    one with their attentions, see LayerSet.
    """

    costs: CostModel
    protected: int
    most_draft_tokens: int
    decay: float = FIRST_DECAY
    parallel: bool = False

    def choose(self, similarity: torch.Tensor, context: float) -> LayerSet:
        """The set with the most expected tokens per second, for similarity of each sublayer, float32 [2 * layers].

        It leaves something out even where drafts lose; only where every layer is spared it is empty.
        """
        change = _change(similarity)
        attentions, mlps = (self._ranked(change, kind) for kind in (0, 1))
        lost = np.add.outer(_sums(change[attentions]), _sums(change[mlps]))
        plain = self.costs.seconds(1, context)
        saved = self.costs.sublayer_shares(context)
        nothing_saved = self.costs.seconds(1, context, 0b1) / plain + saved[0]
        ratio = nothing_saved - np.add.outer(saved[0] * _counts(attentions), saved[1] * _counts(mlps))
        rate = self._rates(np.exp(-self.decay * lost), ratio, context)
        rate[0, 0] = 0.0  # leaves nothing out
        a, m = np.unravel_index(int(rate.argmax()), rate.shape)
        return LayerSet(self.costs.num_layers, sum(1 << one for one in (*attentions[:a], *mlps[:m])))

    def _rates(self, alpha: Floats, draft_ratio: Floats, context: float) -> Floats:
        """cost_model.speed_up of many."""
        plain = self.costs.seconds(1, context)
        committed, best = np.ones_like(alpha), np.zeros_like(alpha)
        for k in range(1, self.most_draft_tokens + 1):
            committed = committed + alpha**k
            time = draft_ratio * k + self.costs.seconds(k + 1, context) / plain
            best = np.maximum(best, committed / time)
        return best

    def alpha(self, layer_set: LayerSet, similarity: torch.Tensor) -> float:
        """The expected share of drafted tokens that are accepted."""
        return math.exp(-self.decay * loss(layer_set, similarity))

    def note(self, layer_set: LayerSet, similarity: torch.Tensor, alpha: float) -> None:
        """Learn from a set whose drafts were right so often; mutates decay.

        By the error of alpha itself: of ten tokens all may be right or none, whose logarithms would outweigh the rest.
        """
        if loss(layer_set, similarity) >= LEAST_LOSS:
            self.decay *= math.exp(RATE * (self.alpha(layer_set, similarity) - alpha))

    def _ranked(self, change: Floats, kind: int) -> list[int]:
        """The sublayers of a kind (0: attention, 1: MLP) that may go, the one that changes least first."""
        may_go = open_sublayers(self.costs.num_layers, self.protected, self.parallel)
        return sorted((one for one in may_go if one % 2 == kind), key=lambda one: float(change[one]))


def _change(similarity: torch.Tensor) -> Floats:
    """1 − cosine of each sublayer; rounding may take a cosine beyond 1."""
    return (1 - similarity.double().numpy()).clip(min=0)


def _counts(sublayers: list[int]) -> Floats:
    return np.arange(len(sublayers) + 1, dtype=np.float64)


def _sums(values: Floats) -> Floats:
    """Of the first 0, 1, … of them."""
    return np.concatenate(([0.0], np.cumsum(values)))
