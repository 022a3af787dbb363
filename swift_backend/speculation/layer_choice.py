"""Which layers does a prompt's draft skip? Read off its prefill, decided at its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swift_backend.sequence import Sequence
from swift_backend.speculation.similarity import LayerSimilarity, most_redundant, skip_ratio


@dataclass(frozen=True, slots=True)
class LayerChooser:
    """Gives sequences their layer sets. ratio: share of layers to skip; protected: layers spared at each end."""

    ratio: float
    protected: int

    @classmethod
    def for_model(cls, num_layers: int, ratio: float | None, protected: int) -> LayerChooser:
        """ratio: None follows the guide's rule by depth."""
        return cls(skip_ratio(num_layers) if ratio is None else ratio, protected)

    def watch(self, sequences: Iterable[Sequence]) -> LayerSimilarity | None:
        """What must observe a pass over these sequences, if anything."""
        return LayerSimilarity() if any(_wants_layer_set(sequence) for sequence in sequences) else None

    def note(self, seen: LayerSimilarity, rows: Iterable[tuple[Sequence, int, bool]]) -> None:
        """Add what was seen to each prompt, in the order of the pass: (sequence, rows, whether its prompt ends here).

        Mutates the sequences' similarity, and at the prompt's end their layer set.
        """
        rows, ranges, start = list(rows), [], 0
        for _, count, _ in rows:
            ranges.append((start, start + count))
            start += count
        for (sequence, count, ends), sums in zip(rows, seen.sums(ranges), strict=True):
            if not _wants_layer_set(sequence):
                continue
            sequence.note_similarity(sums, count)
            if ends and sequence.mean_similarity is not None:
                sequence.layer_set = most_redundant(sequence.mean_similarity, self.ratio, self.protected)


def _wants_layer_set(sequence: Sequence) -> bool:
    return sequence.layer_set is None and sequence.params.speculation != "off"
