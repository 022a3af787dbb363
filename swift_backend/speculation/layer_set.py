"""Which sublayers does a draft pass skip? A bitmask over the flat list attn_0, mlp_0, attn_1, mlp_1, …

Where attention and MLP of a layer read the same state, they are one sublayer, with the number of the attention; the
number of the MLP is then nobody's, and its bit stays 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerSet:
    """The sublayers left out while drafting: bit i of skip_mask is sublayer i of 2 * num_layers."""

    num_layers: int
    skip_mask: int = 0

    @classmethod
    def skipping(cls, num_layers: int, layers: Iterable[int], *, parallel: bool = False) -> LayerSet:
        """The set that skips whole layers: attention and MLP of each; parallel: where the two are one sublayer."""
        mask = 0
        for layer in layers:
            assert 0 <= layer < num_layers, "layer out of range"
            mask |= (0b01 if parallel else 0b11) << (2 * layer)
        return cls(num_layers, mask)

    @classmethod
    def most_frequent(cls, sets: Iterable[LayerSet]) -> LayerSet:
        """The set that most of several have, the first of those that equally many have."""
        [(one, _)] = Counter(sets).most_common(1)
        return one

    @classmethod
    def common(cls, sets: Sequence[LayerSet]) -> LayerSet:
        """One set for several sequences: that of half of them, the first of two such.

        Where no set has so many, what most of them skip, as much as theirs are large on average; ties go to the lower
        sublayer. Nobody has chosen that set, and nothing is known of it.
        """
        first, most_frequent = sets[0], cls.most_frequent(sets)
        if 2 * sets.count(most_frequent) >= len(sets):
            return most_frequent
        votes = [sum(not one.keeps(sublayer) for one in sets) for sublayer in range(2 * first.num_layers)]
        size = round(sum(votes) / len(sets))
        ranked = sorted(range(len(votes)), key=lambda sublayer: (-votes[sublayer], sublayer))
        return cls(first.num_layers, sum(1 << sublayer for sublayer in ranked[:size]))

    def keeps(self, sublayer: int) -> bool:
        """Whether the draft pass computes this sublayer."""
        return not self.skip_mask >> sublayer & 1

    @property
    def kept(self) -> tuple[int, ...]:
        """Indices of the sublayers that are computed, in order."""
        return tuple(i for i in range(2 * self.num_layers) if self.keeps(i))

    @property
    def skipped_layers(self) -> tuple[int, ...]:
        """Layers of which both sublayers are skipped."""
        return tuple(n for n in range(self.num_layers) if self.skip_mask >> (2 * n) & 0b11 == 0b11)

    def __bool__(self) -> bool:
        """Whether anything is skipped at all."""
        return self.skip_mask != 0


def open_sublayers(num_layers: int, protected: int, parallel: bool) -> range:
    """Those that may be left out, where `protected` layers are spared at each end; parallel: as in skipping."""
    return range(2 * protected, 2 * (num_layers - protected), 2 if parallel else 1)
