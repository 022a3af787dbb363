"""What does the policy know of one request? Its text's repetitions, how its drafts did, and how fast it is."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from swift_backend.sequence import Sequence
from swift_backend.speculation.chances import MatchChances, OwnChance
from swift_backend.speculation.ngram_store import NgramStore
from swift_backend.speculation.suffix_automaton import SuffixAutomaton

# After a trial that did not pay, the next one waits twice as many rounds.
FIRST_PAUSE, LONGEST_PAUSE = 16, 128
# Tokens of a prompt that are read in one step; others wait meanwhile.
MOST_READ = 2048
# A round's weight in what the speed-up is taken to be.
SPEED_MEMORY = 0.93


@dataclass(slots=True)
class DraftingState:
    """May be asked and told between two steps only.

    ngrams, layers: which drafters the request allows. store: texts of other requests. text: what the cache holds of the
    request's, and the token after. proposed: what came after the latest match, of length `matched`. cost: of the round
    to come, in times of a plain one; decide_seconds: its share of deciding on it. first: whether a round's first draft
    token was right; second: where it was not, whether the second favourite was. drafting: its latest round had draft
    passes because they pay. waited: rounds since the last draft pass; pause: how many there should be before the next
    trial; again: the latest draft was right.
    """

    ngrams: bool
    layers: bool
    matches: MatchChances
    store: NgramStore
    text: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    first: OwnChance = field(default_factory=OwnChance)
    second: OwnChance = field(default_factory=OwnChance)
    proposed: list[int] = field(default_factory=list)
    matched: int = 0
    cost: float = 1.0
    decide_seconds: float = 0.0
    drafting: bool = False
    waited: int = 0
    pause: int = FIRST_PAUSE
    again: bool = False
    _behind: bool = False  # some of the text has not been read yet
    _expected: tuple[int, float] | None = None
    _tokens: float = 1 / (1 - SPEED_MEMORY)  # as if it had been plain decoding until now
    _cost: float = 1 / (1 - SPEED_MEMORY)
    _rounds: float = 1 / (1 - SPEED_MEMORY)

    def read(self, sequence: Sequence) -> None:
        """Take in what is new of the text, a part of it at a time where it is long."""
        if self.ngrams:
            end = sequence.kv_len + 1
            self.text.extend(sequence.tokens[len(self.text) : min(end, len(self.text) + MOST_READ)])
            self._behind = len(self.text) < end

    def propose(self, most: int) -> None:
        """Look for what comes next in the text, or in others where more of it occurs; up to `most` tokens."""
        most = 0 if self._behind else most
        self.matched, _ = self.text.match() if most else (0, 0)
        self.proposed = self.text.continuation(most) if self.matched else []
        if most and len(self.store):
            length, text, end = self.store.match(self.text.tokens)
            if length > self.matched:
                self.matched, self.proposed = length, text[end : end + most]

    def expected(self, skip_mask: int, reckon: Callable[[], float]) -> float:
        """What reckon() says of a layer set, asked once for each."""
        if self._expected is None or self._expected[0] != skip_mask:
            self._expected = skip_mask, reckon()
        return self._expected[1]

    @property
    def tokens_a_round(self) -> float:
        """Committed of late; at least 1."""
        return max(1.0, self._tokens / self._rounds)

    @property
    def cost_of_a_round(self) -> float:
        """Of late, in times of a plain one; no more than its tokens would have cost."""
        return min(self._cost, self._tokens) / self._rounds

    @property
    def trial_due(self) -> bool:
        """Whether draft passes that do not seem to pay should be tried again."""
        return self.again or self.waited >= self.pause

    def note_favourites(self, favourites: Seq[int], token: int) -> None:
        """A round's first draft token was to be this one."""
        right = favourites[0] == token
        self.first.note(right)
        self.again = right
        if not right and len(favourites) > 1:
            self.second.note(favourites[1] == token)

    def note_speed(self, tokens: int, cost: float) -> None:
        """A round committed so many tokens in so many times the time of a plain one."""
        self._tokens = SPEED_MEMORY * self._tokens + tokens
        self._cost = SPEED_MEMORY * self._cost + cost
        self._rounds = SPEED_MEMORY * self._rounds + 1

    def note_passes(self, *, drafted: bool, pays: bool) -> None:
        """A round had draft passes or not; pays: because that seemed worth it, and not as a trial."""
        if pays:
            self.pause = FIRST_PAUSE
        elif drafted and not self.again:
            self.pause = min(2 * self.pause, LONGEST_PAUSE)
        self.again = False
        self.waited = 0 if drafted else self.waited + 1
        self.drafting = pays
