"""Which layers hardly change the text's hidden states? Phase 1 of the guide, read off prefill."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
import torch.nn.functional as F

from swift_backend.speculation.layer_set import LayerSet

# The guide's playbook: 12–16 of 32 layers, 36–44 of 80; the middle of each range.
RATIO_AT_32 = 14 / 32
RATIO_AT_80 = 40 / 80


class LayerSimilarity:
    """Observes a pass and keeps cos(input, output) of every layer for every row.

    S(l) = h_l · h_{l−1} / (‖h_l‖ ‖h_{l−1}‖), the guide's measure, h_l being the hidden state after layer l.
    """

    def __init__(self) -> None:
        self._before: torch.Tensor | None = None
        self._rows: list[torch.Tensor] = []

    def observe(self, sublayer: int, before: torch.Tensor, after: torch.Tensor) -> None:
        """Hook for Decoder.forward: called after every sublayer with hidden states [rows, hidden]."""
        if sublayer % 2 == 0:
            self._before = before
        elif self._before is not None:
            self._rows.append(F.cosine_similarity(self._before.float(), after.float(), dim=-1))

    def sums(self, row_ranges: Seq[tuple[int, int]]) -> torch.Tensor:
        """Similarity summed over each range of rows, float32 [ranges, layers]."""
        stacked = torch.stack(self._rows)  # [layers, rows]
        return torch.stack([stacked[:, start:end].sum(dim=1) for start, end in row_ranges])


def skip_ratio(num_layers: int) -> float:
    """Share of layers to skip by depth: the guide's figures at 32 and 80 layers, a line between them and flat above;
    below 32 layers in proportion to depth, since shallow models have less to spare.
    """
    if num_layers <= 32:
        return RATIO_AT_32 * num_layers / 32
    along = min(1.0, (num_layers - 32) / (80 - 32))
    return RATIO_AT_32 + along * (RATIO_AT_80 - RATIO_AT_32)


def most_redundant(similarity: torch.Tensor, ratio: float, protected: int) -> LayerSet:
    """Skip the round(ratio * layers) layers of highest similarity, float32 [layers], sparing `protected` at each end.

    Ties go to the lower layer.
    """
    num_layers = similarity.shape[0]
    candidates = range(protected, num_layers - protected)
    count = min(round(ratio * num_layers), len(candidates))
    ranked = sorted(candidates, key=lambda layer: (-float(similarity[layer]), layer))
    return LayerSet.skipping(num_layers, ranked[:count])
