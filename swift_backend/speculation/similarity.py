"""Which layers hardly change the text's hidden states? Phase 1 of the guide, read off prefill."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from swift_backend.speculation.layer_set import LayerSet, open_sublayers

# The guide's playbook: 12–16 of 32 layers, 36–44 of 80; the middle of each range.
RATIO_AT_32 = 14 / 32
RATIO_AT_80 = 40 / 80
# Of two states, multiplied: a state of zeros is like none.
LEAST_LENGTH = 1e-12


class LayerSimilarity:
    """Observes a pass, and keeps cos(input, output) of every sublayer and of every layer, for the rows of some ranges.

    S(l) = h_l · h_{l−1} / (‖h_l‖ ‖h_{l−1}‖) is the guide's measure, h_l being the hidden state after layer l. Every row
    counts: with 8 of some 100 the choice moved further than from one prompt to another.
    """

    def __init__(self, row_ranges: Seq[tuple[int, int]]) -> None:
        """row_ranges: the rows [start, end) of the pass, none empty, of which similarity is wanted."""
        self._ranges = row_ranges
        self._layer_input = torch.empty(0)
        self._lengths: list[torch.Tensor] = []  # of the first state and of that after each sublayer, [rows] each
        self._sublayers: list[torch.Tensor] = []  # input · output of each, [rows]
        self._layers: list[torch.Tensor] = []

    def observe(self, sublayer: int, before: torch.Tensor, after: torch.Tensor) -> None:
        """Hook for Decoder.forward: called after every sublayer with hidden states [rows, hidden]."""
        before, after = before.float(), after.float()
        if sublayer == 0:
            self._lengths.append(torch.linalg.vector_norm(before, dim=-1))
        if sublayer % 2 == 0:
            self._layer_input = before
        self._lengths.append(torch.linalg.vector_norm(after, dim=-1))
        self._sublayers.append(torch.linalg.vecdot(before, after))
        if sublayer % 2:
            self._layers.append(torch.linalg.vecdot(self._layer_input, after))

    def profiles(self) -> torch.Tensor:
        """For each range the mean over its rows, float32 [ranges, 3 * layers]: see Profile."""
        lengths = torch.stack(self._lengths)  # [2 * layers + 1, rows]
        dots = torch.stack([*self._sublayers, *self._layers])
        products = torch.cat((lengths[:-1] * lengths[1:], lengths[:-2:2] * lengths[2::2]))
        by_row = (dots / products.clamp_min(LEAST_LENGTH)).cpu()
        return torch.stack([by_row[:, start:end].mean(dim=1) for start, end in self._ranges])


@dataclass(frozen=True, slots=True)
class Profile:
    """What a text does to the hidden states: float32 [3 * layers], first of each sublayer and then of each layer."""

    values: torch.Tensor

    @property
    def sublayers(self) -> torch.Tensor:
        """float32 [2 * layers]."""
        return self.values[: 2 * self._num_layers]

    @property
    def layers(self) -> torch.Tensor:
        """float32 [layers]."""
        return self.values[2 * self._num_layers :]

    @property
    def _num_layers(self) -> int:
        return self.values.shape[0] // 3


def skip_ratio(num_layers: int) -> float:
    """Share of layers to skip by depth: the guide's figures at 32 and 80 layers, a line between them and flat above;
    below 32 layers in proportion to depth, since shallow models have less to spare.
    """
    if num_layers <= 32:
        return RATIO_AT_32 * num_layers / 32
    along = min(1.0, (num_layers - 32) / (80 - 32))
    return RATIO_AT_32 + along * (RATIO_AT_80 - RATIO_AT_32)


def most_redundant_sublayers(
    similarity: torch.Tensor, ratio: float, protected: int, *, parallel: bool = False
) -> LayerSet:
    """Skip as many sublayers as the guide skips layers, those of highest similarity, float32 [2 * layers].

    Sublayers of `protected` layers at each end are spared; ties go to the lower sublayer. parallel: as in LayerSet.
    """
    num_layers = similarity.shape[0] // 2
    candidates = open_sublayers(num_layers, protected, parallel)
    count = min((1 if parallel else 2) * round(ratio * num_layers), len(candidates))
    ranked = sorted(candidates, key=lambda one: (-float(similarity[one]), one))
    return LayerSet(num_layers, sum(1 << one for one in ranked[:count]))


def most_redundant(similarity: torch.Tensor, ratio: float, protected: int, *, parallel: bool = False) -> LayerSet:
    """Skip the round(ratio * layers) layers of highest similarity, float32 [layers], sparing `protected` at each end.

    Ties go to the lower layer. parallel: as in LayerSet.
    """
    num_layers = similarity.shape[0]
    candidates = range(protected, num_layers - protected)
    count = min(round(ratio * num_layers), len(candidates))
    ranked = sorted(candidates, key=lambda layer: (-float(similarity[layer]), layer))
    return LayerSet.skipping(num_layers, ranked[:count], parallel=parallel)
