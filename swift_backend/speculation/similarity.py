"""Which layers hardly change the text's hidden states? Phase 1 of the guide, read off prefill."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from swift_backend.speculation.layer_set import LayerSet

# The guide's playbook: 12–16 of 32 layers, 36–44 of 80; the middle of each range.
RATIO_AT_32 = 14 / 32
RATIO_AT_80 = 40 / 80
MOST_ROWS = 8


class LayerSimilarity:
    """Observes a pass, and keeps cos(input, output) of every sublayer and of every layer, for some rows of each range.

    S(l) = h_l · h_{l−1} / (‖h_l‖ ‖h_{l−1}‖) is the guide's measure, h_l being the hidden state after layer l. Up to
    MOST_ROWS rows, evenly spread, speak for a range: their mean hardly moves with more, and each costs time.
    """

    def __init__(self, row_ranges: Seq[tuple[int, int]]) -> None:
        """row_ranges: the rows [start, end) of the pass, none empty, of which similarity is wanted."""
        picked = [_spread(start, end) for start, end in row_ranges]
        self._counts = [len(rows) for rows in picked]
        self._rows = torch.tensor([row for rows in picked for row in rows])
        self._states: list[torch.Tensor] = []

    def observe(self, sublayer: int, before: torch.Tensor, after: torch.Tensor) -> None:
        """Hook for Decoder.forward: called after every sublayer with hidden states [rows, hidden]."""
        rows = self._rows = self._rows.to(after.device)
        if sublayer == 0:
            self._states.append(before.index_select(0, rows))
        self._states.append(after.index_select(0, rows))

    def profiles(self) -> torch.Tensor:
        """For each range the mean over its rows, float32 [ranges, 3 * layers]: see Profile."""
        states = torch.stack(self._states).float()  # [2 * layers + 1, rows, hidden]
        states = F.normalize(states, dim=-1)
        sublayers = (states[1:] * states[:-1]).sum(-1)
        layers = (states[2::2] * states[:-2:2]).sum(-1)
        by_row = torch.cat((sublayers, layers)).cpu()
        return torch.stack([part.mean(dim=1) for part in by_row.split(self._counts, dim=1)])


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


def _spread(start: int, end: int) -> list[int]:
    """Up to MOST_ROWS rows of [start, end), the last one among them."""
    count = min(MOST_ROWS, end - start)
    return [end - 1 - i * (end - start) // count for i in range(count)]


def skip_ratio(num_layers: int) -> float:
    """Share of layers to skip by depth: the guide's figures at 32 and 80 layers, a line between them and flat above;
    below 32 layers in proportion to depth, since shallow models have less to spare.
    """
    if num_layers <= 32:
        return RATIO_AT_32 * num_layers / 32
    along = min(1.0, (num_layers - 32) / (80 - 32))
    return RATIO_AT_32 + along * (RATIO_AT_80 - RATIO_AT_32)


def most_redundant_sublayers(similarity: torch.Tensor, ratio: float, protected: int) -> LayerSet:
    """Skip as many sublayers as the guide skips layers, those of highest similarity, float32 [2 * layers].

    Sublayers of `protected` layers at each end are spared; ties go to the lower sublayer.
    """
    num_layers = similarity.shape[0] // 2
    candidates = range(2 * protected, 2 * (num_layers - protected))
    count = min(2 * round(ratio * num_layers), len(candidates))
    ranked = sorted(candidates, key=lambda one: (-float(similarity[one]), one))
    return LayerSet(num_layers, sum(1 << one for one in ranked[:count]))


def most_redundant(similarity: torch.Tensor, ratio: float, protected: int) -> LayerSet:
    """Skip the round(ratio * layers) layers of highest similarity, float32 [layers], sparing `protected` at each end.

    Ties go to the lower layer.
    """
    num_layers = similarity.shape[0]
    candidates = range(protected, num_layers - protected)
    count = min(round(ratio * num_layers), len(candidates))
    ranked = sorted(candidates, key=lambda layer: (-float(similarity[layer]), layer))
    return LayerSet.skipping(num_layers, ranked[:count])
