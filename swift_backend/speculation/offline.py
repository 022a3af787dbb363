"""Which layer set drafts fastest on a corpus? Those of a trellis are tried, and sublayers of the best one exchanged."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from swift_backend.speculation.corpus import Corpus, Text
from swift_backend.speculation.cost_model import CostModel
from swift_backend.speculation.layer_set import LayerSet, open_sublayers
from swift_backend.speculation.matchness import Trial
from swift_backend.speculation.rehearsal import Costs, Rehearsal, best_rehearsal
from swift_backend.speculation.trellis import Trellis

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
    """Tries layer sets on texts, by tokens per second.

    In an exchange only `width` sublayers are tried, those that change the states least for what they cost.
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
        parallel: bool = False,
    ) -> None:
        """protected: layers spared at each end. positions: of each text, while sets are compared. parallel: as in
        LayerSet.
        """
        self._corpus = corpus
        self._costs = costs
        self._layers = costs.num_layers
        self._most = most_draft_tokens
        self.positions = positions
        self._width = width
        self._open = open_sublayers(self._layers, protected, parallel)
        self._num_sublayers = (1 if parallel else 2) * self._layers

    def score(self, skips: Seq[int], positions: int, texts: Seq[Text] | None = None) -> list[Scored]:
        """How drafts with each of these masks go on the texts, all by default."""
        chosen = self._corpus.texts if texts is None else texts
        return self.judge(skips, self._corpus.trials(skips, positions, chosen), chosen)

    def judge(self, skips: Seq[int], trials: Seq[Trial], texts: Seq[Text]) -> list[Scored]:
        """The same of trials that were made: one for each text, of these masks."""
        context = sum(len(text.tokens) for text in texts) / len(texts)
        return [self._scored(skip, [_candidate(trial, i) for trial in trials], context) for i, skip in enumerate(skips)]

    def trellis(self, texts: Seq[Text], most_skipped: float) -> Trellis:
        """One over the texts, whose paths leave out up to that share of the sublayers."""
        most = int(most_skipped * self._num_sublayers)
        return Trellis(
            self._corpus.shadows(self.positions, texts),
            self._costs.sublayer_shares(0.0),
            lambda skip, sublayer: sublayer in self._open and skip.bit_count() < most,
            2 * self._layers,
        )

    def exchange(self, best: Scored, texts: Seq[Text]) -> Scored:
        """Put back one sublayer and leave out another, one more or none; the same set where nothing helps."""
        skip = best.layer_set.skip_mask
        back = [skip & ~(1 << one) for one in range(2 * self._layers) if skip >> one & 1]
        shorter = max(self.score(back, self.positions, texts), key=lambda scored: scored.speed_up)
        base = shorter.layer_set.skip_mask
        others = [rest | 1 << one for rest in (base, skip) for one in self._cheapest(rest, texts)]
        masks = [mask for mask in dict.fromkeys((skip, base, *others)) if mask]  # drafts that skip nothing are none
        return max(self.score(masks, self.positions, texts), key=lambda scored: scored.speed_up)

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
