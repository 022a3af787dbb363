"""Which layers does a request's draft skip? Read off its prefill, chosen at its end, and learnt from its rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from swift_backend.sequence import Sequence
from swift_backend.speculation.cost_model import CostModel
from swift_backend.speculation.draft import Draft
from swift_backend.speculation.knapsack import Knapsack
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.pool import SHIPPED, Pool
from swift_backend.speculation.search import OnlineSearch
from swift_backend.speculation.similarity import (
    LayerSimilarity,
    Profile,
    most_redundant,
    most_redundant_sublayers,
    skip_ratio,
)

# Ways of speculating that learn from what others drafted, and that try sets of their own.
POOLED = ("auto", "skip")
SEARCHING = (*POOLED, "search")
# After so many rounds its latest token is looked at on its way through a full pass: texts change.
LOOK_EVERY = 64
# How much that says against what was seen before: it is one token of hundreds.
LOOK_RATE = 0.1
# A request whose drafts do not pay earns this share of the time for trying other sets, which may.
UNUSED = 0.1
WITHOUT_LAYERS = ("off", "ngram", "lookahead")


@dataclass(frozen=True, slots=True)
class Watch:
    """A pass in which some prompts are looked at: who they are, and how many of their rows are in it."""

    seen: LayerSimilarity
    rows: list[tuple[Sequence, int]]


@dataclass(frozen=True, slots=True)
class Guide:
    """The guide's rule. ratio: share of layers to skip; protected: layers spared at each end.

    parallel: attention and MLP are one sublayer, see LayerSet.
    """

    ratio: float
    protected: int
    parallel: bool = False

    @classmethod
    def for_model(cls, num_layers: int, ratio: float | None, protected: int, parallel: bool = False) -> Guide:
        """ratio: None follows the guide's rule by depth."""
        return cls(skip_ratio(num_layers) if ratio is None else ratio, protected, parallel)

    def layers(self, profile: Profile) -> LayerSet:
        """Whole layers, the most similar ones: to the letter."""
        return most_redundant(profile.layers, self.ratio, self.protected, parallel=self.parallel)

    def sublayers(self, profile: Profile) -> LayerSet:
        """As many sublayers, the most similar ones of both kinds."""
        return most_redundant_sublayers(profile.sublayers, self.ratio, self.protected, parallel=self.parallel)


class LayerChooser:
    """Gives sequences their layer sets, by their way of speculating, and lets them try others between rounds."""

    def __init__(
        self, guide: Guide, costs: CostModel, knapsack: Knapsack, pool: Pool, search: OnlineSearch, most: int
    ) -> None:
        """most: the longest draft."""
        self.guide, self.costs, self.pool, self.search = guide, costs, pool, search
        self._knapsack = knapsack
        self._most = most

    def watch(self, rows: Iterable[tuple[Sequence, int]]) -> Watch | None:
        """What must observe a pass, if anything; rows: each sequence and the number of its rows, in order."""
        ranges: list[tuple[int, int]] = []
        wanted: list[tuple[Sequence, int]] = []
        start = 0
        for sequence, count in rows:
            seen = count if _wants_layer_set(sequence) else int(_may_be_looked_at(sequence))
            if seen:
                ranges.append((start, start + seen))
                wanted.append((sequence, seen))
            start += count
        return Watch(LayerSimilarity(ranges), wanted) if wanted else None

    def note(self, watch: Watch, complete: Seq[Sequence]) -> None:
        """Add what was seen to each prompt, and choose for those that are complete with this pass.

        Of a text that is being written, what was seen lately speaks for a set to be tried.
        Mutates the sequences' profiles and, at the prompt's end, their layer sets.
        """
        for (sequence, count), profile in zip(watch.rows, watch.seen.profiles(), strict=True):
            if not _wants_layer_set(sequence):
                self._look(sequence, profile)
                continue
            sequence.note_profile(profile, count)
            if any(sequence is one for one in complete):
                self._give(sequence, self.choose(sequence))

    def choose(self, sequence: Sequence) -> LayerSet | None:
        """By the request's way of speculating, and its prompt's profile; None where nothing is known."""
        if sequence.profile is None:
            return None
        profile, mode = Profile(sequence.profile), sequence.params.speculation
        if mode == "static":
            return self._set(self.pool.best(self._value(len(sequence.tokens), mode), SHIPPED))
        if mode == "search":
            known = self.pool.suggest(profile.values, self._value(len(sequence.tokens), mode))
            self.search.begin_with(self.guide.layers(profile).skip_mask if known is None else known)
            return self.search.layer_set if known is None else self._set(known)
        if mode in POOLED:
            return self._pooled(profile, len(sequence.tokens))
        return self.guide.layers(profile) if mode == "fixed" else self.guide.sublayers(profile)

    def note_round(self, sequence: Sequence, draft: Draft, committed: Seq[int]) -> None:
        """Learn from a round: what its draft passes said of tokens that are known now, whether it was drafted or not.

        committed: the round's tokens. Mutates the sequence's guesses.
        """
        outcomes = [(one, one.outcome(committed)) for one in draft.guesses]
        known = [(one, one.token_ids[0] == token) for one, token in outcomes if token is not None]
        if not known:
            return
        sequence.mixed_sets |= sequence.layer_set is None or draft.skip_mask != sequence.layer_set.skip_mask
        sequence.guesses += len(known)
        sequence.right_guesses += sum(right for _, right in known)
        if sequence.params.speculation in SEARCHING:
            for one, right in known:
                self.pool.note(draft.skip_mask, first=not one.after, confidence=one.confidence, accepted=right)

    def round_done(self, sequence: Sequence, seconds: float) -> float:
        """Between two rounds: a sequence has decoded for so long, and a better set may be found for it.

        Returns the seconds that were spent on that. Mutates sequence.layer_set and search_seconds.
        """
        mode = sequence.params.speculation
        if mode not in SEARCHING:
            return 0.0
        worth = 1.0 if sequence.drafting is None or sequence.drafting.drafting else UNUSED
        spent = self.search.round_done(sequence, worth * seconds)
        sequence.search_seconds += spent
        if race := self.search.better:
            self.pool.add(race.skip_mask, "search")
            if sequence.profile is not None:  # or the next prompt of this kind would not know
                self.pool.remember(sequence.profile, race.skip_mask, race.tried, race.right)
                self.pool.remember(sequence.profile, race.incumbent, race.tried, race.incumbent_right)
            sequence.mixed_sets = True
            self._give(sequence, self._set(race.skip_mask))
        return spent

    def ended(self, sequence: Sequence) -> None:
        """Learn from a request that is over, while its part of the cache is still its own."""
        self.search.forget(sequence)
        if sequence.num_output_tokens and sequence.params.speculation != "off":
            self.pool.note_text(sequence.request.prompt_ids, sequence.tokens[sequence.num_prompt_tokens :])
        if sequence.params.speculation not in SEARCHING or sequence.mixed_sets:
            return
        if sequence.layer_set is not None and sequence.profile is not None:
            mask = sequence.layer_set.skip_mask
            self.pool.remember(sequence.profile, mask, sequence.guesses, sequence.right_guesses)

    def _give(self, sequence: Sequence, layer_set: LayerSet | None) -> None:
        sequence.layer_set = layer_set
        if layer_set is not None:
            head = self._head_share(sequence.params.speculation)
            sequence.draft_cost_ratio = self.costs.draft_ratio(layer_set, len(sequence.tokens), head)

    def _look(self, sequence: Sequence, profile: torch.Tensor) -> None:
        known = sequence.profile if sequence.recent_profile is None else sequence.recent_profile
        if known is not None:
            profile = known + LOOK_RATE * (profile - known)
        sequence.recent_profile = profile
        chosen = self._knapsack.choose(Profile(profile).sublayers, len(sequence.tokens))
        self.search.suggest(chosen.skip_mask, sequence.layer_set.skip_mask)

    def _pooled(self, profile: Profile, context: int) -> LayerSet | None:
        """What the pool speaks for, which begins with the guide's set; a knapsack has to win a race first."""
        known = self.pool.suggest(profile.values, self._value(context, POOLED[0]))
        if known is None:
            known = self.pool.add(self.guide.layers(profile).skip_mask, "similarity").skip_mask
        self.search.begin_with(known)
        self.search.suggest(self._knapsack.choose(profile.sublayers, context).skip_mask, known)
        return self._set(known)

    def _value(self, context: float, mode: str) -> Callable[[int, float], float]:
        """Expected tokens per second of a mask whose drafted tokens are accepted so often."""
        head = self._head_share(mode)
        return lambda skip_mask, alpha: self.costs.drafting_speed(alpha, skip_mask, context, self._most, head)

    def _head_share(self, mode: str) -> float:
        """Of the vocabulary that draft passes of this way of speculating score."""
        return self.costs.short_head if mode in POOLED else 1.0

    def _set(self, skip_mask: int | None) -> LayerSet | None:
        return None if skip_mask is None else LayerSet(self.costs.num_layers, skip_mask)


def _wants_layer_set(sequence: Sequence) -> bool:
    return sequence.layer_set is None and sequence.params.speculation not in WITHOUT_LAYERS


def _may_be_looked_at(sequence: Sequence) -> bool:
    """Its first row is of a token that stands, the others may be drafts that do not."""
    searching = sequence.params.speculation in SEARCHING and sequence.layer_set is not None
    return searching and sequence.rounds % LOOK_EVERY == LOOK_EVERY - 1
