"""Which layer set drafts fastest on a corpus? One sublayer after another is left out, then some are exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from swift_backend.speculation.corpus import Corpus, Text
from swift_backend.speculation.cost_model import CostModel
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.matchness import Trial
from swift_backend.speculation.rehearsal import Costs, Rehearsal, best_rehearsal

THRESHOLDS = (0.0, 0.5, 0.65, 0.8)


@dataclass(frozen=True, slots=True)
class Scored:
    """A layer set, and how the fastest drafts with it went."""

    layer_set: LayerSet
    played: Rehearsal
    length: int
    threshold: float
    draft_ratio: float

    @property
    def speed_up(self) -> float:
        """Tokens per second over plain decoding."""
        return self.played.speed_up


class OfflineSearch:
    """Greedy elimination by tokens per second: what is left out next is what makes drafts fastest, or least slow.

    Only `width` sublayers are tried in each step, those that change the states least for what they cost.
    """

    def __init__(
        self,
        corpus: Corpus,
        costs: CostModel,
        *,
        most_draft_tokens: int,
        protected: int = 1,
        positions: int = 24,
        width: int = 10,
    ) -> None:
        """protected: layers spared at each end. positions: of each text, while sets are compared."""
        self._corpus = corpus
        self._costs = costs
        self._layers = costs.num_layers
        self._most = most_draft_tokens
        self._positions = positions
        self._width = width
        self._open = range(2 * protected, 2 * (self._layers - protected))

    def score(self, skips: Seq[int], positions: int, texts: Seq[Text] | None = None) -> list[Scored]:
        """How drafts with each of these masks go on the texts, all by default."""
        chosen = self._corpus.texts if texts is None else texts
        trials = self._corpus.trials(skips, positions, chosen)
        context = sum(len(text.tokens) for text in chosen) / len(chosen)
        return [self._scored(skip, [_candidate(trial, i) for trial in trials], context) for i, skip in enumerate(skips)]

    def steps(self, most_skipped: float) -> int:
        """How many sets descend() will find."""
        return min(int(most_skipped * 2 * self._layers), len(self._open))

    def descend(self, texts: Seq[Text], most_skipped: float) -> Iterator[Scored]:
        """The best set of each size, up to that share of the sublayers; texts speak for the traffic."""
        skip = 0
        for _ in range(self.steps(most_skipped)):
            masks = [skip | 1 << one for one in self._cheapest(skip, texts)]
            best = max(self.score(masks, self._positions, texts), key=lambda scored: scored.speed_up)
            skip = best.layer_set.skip_mask
            yield best

    def exchange(self, start: Scored, texts: Seq[Text], rounds: int = 2) -> Scored:
        """Put back one sublayer and leave out another, as long as that helps."""
        best = start
        for _ in range(rounds):
            skip = best.layer_set.skip_mask
            back = [skip & ~(1 << one) for one in range(2 * self._layers) if skip >> one & 1]
            shorter = max(self.score(back, self._positions, texts), key=lambda scored: scored.speed_up)
            base = shorter.layer_set.skip_mask
            others = (base | 1 << one for one in self._cheapest(base, texts))
            masks = [mask for mask in (skip, base, *others) if mask]  # drafts that skip nothing are none
            better = max(self.score(masks, self._positions, texts), key=lambda scored: scored.speed_up)
            if better.layer_set == best.layer_set:
                break
            best = better
        return best

    def _cheapest(self, skip: int, texts: Iterable[Text]) -> list[int]:
        """The sublayers that may go next: those with the least change of the states for the time that they take."""
        profiles = [text.profile.sublayers for text in texts]
        change = 1 - sum(profiles[1:], profiles[0]) / len(profiles)
        seconds = self._costs.sublayer_seconds(0.0)
        left = [one for one in self._open if not skip >> one & 1]
        return sorted(left, key=lambda one: float(change[one]) / seconds[one % 2])[: self._width]

    def _scored(self, skip: int, trials: list[Trial], context: float) -> Scored:
        layer_set = LayerSet(self._layers, skip)
        plain = self._costs.seconds(1, context)
        verify = tuple(self._costs.seconds(rows, context) / plain for rows in range(1, self._most + 2))
        costs = Costs(self._costs.draft_ratio(layer_set, context), verify)
        texts = [(trial.matches[0].tolist(), trial.confidence[0].tolist()) for trial in trials]
        return Scored(layer_set, *best_rehearsal(texts, costs, THRESHOLDS), costs.draft)


def _candidate(trial: Trial, index: int) -> Trial:
    return Trial(trial.matches[index : index + 1], trial.confidence[index : index + 1])
