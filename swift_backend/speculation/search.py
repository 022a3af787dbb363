"""Which layer set drafts fastest on the traffic at hand? Tried between rounds, in a small share of the time.

The paper's search, with what its released code gets wrong put right (../shared/reference, §2 B12–B16): a candidate and
the incumbent are always tried on the same positions, so that no score is of another topic or of luck; prompts count as
well as answers, from the first token on; and all of it belongs to one engine.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from swift_backend.runner import Runner
from swift_backend.sequence import Sequence
from swift_backend.speculation.cost_model import CostModel
from swift_backend.speculation.growing import POSITIONS, Growth, seconds_to_grow, steps_at_once
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.matchness import Trial, try_sets
from swift_backend.speculation.proposals import Proposals

# The latest tokens of a text, of which positions are drawn, and how many at a time.
WINDOW = 96
LEAST_POSITIONS, MOST_POSITIONS = 4, 32
# A candidate gives up its turn when it is not so much faster after the least positions, or has not won after the most.
# To win it must have been tried enough, and be faster by so many standard errors: winners by luck would be worse than
# the incumbent more often than not, and one after another leads downhill.
LEAST_TRIED, ENOUGH, MOST_TRIED = 8, 32, 512
MARGIN, SURE = 0.01, 2.0
PRIOR_ALPHA, PRIOR_WEIGHT = 0.7, 4.0
# A trial may take so many times a plain token, for more than the least positions: where rows cost next to nothing.
LONGEST = 1.5
# After so many proposals it is time for a trellis, …
GROWING_EVERY = 12
# … on a text that will go on for so many rounds more than it takes, and so many tokens a round.
ROUNDS_TO_SPARE, TOKENS_A_ROUND = 4, 2
# A text that others wait for so many rounds is given up: its reader may have stopped for good.
MOST_WAITED = 256
# Beside the share over all, which a short answer would have to pay at once: of one request's time so far, at most so
# much for trials, but for its first one. Where all answers are short, somebody has to be tried all the same. A trellis
# may take as much of the time that the request may last.
MOST_OF_A_REQUEST = 0.05
# Sets that are raced against at a time, and losers that are not suggested again.
MOST_RACES, MOST_LOSERS = 16, 256


@dataclass(slots=True)
class Race:
    """A candidate against the set in use: positions that both were tried at, and how often each was right.

    differed: how often one of them was and the other was not; only this is a matter of luck.
    """

    skip_mask: int
    incumbent: int
    tried: int = 0
    right: int = 0
    incumbent_right: int = 0
    differed: int = 0

    def note(self, trial: Trial) -> None:
        """Count a trial of (incumbent, candidate)."""
        self.tried += trial.matches.shape[1]
        self.incumbent_right += int(trial.matches[0].sum())
        self.right += int(trial.matches[1].sum())
        self.differed += int((trial.matches[0] != trial.matches[1]).sum())

    @property
    def surely_right(self) -> float:
        """How often the candidate was right, less what may be luck."""
        return max(0.0, self.right - SURE * (self.differed + 1) ** 0.5)


class OnlineSearch:
    """Tries other sets against that of the text at hand, the incumbent.

    So each kind of text has its own, as far as the pool knows them apart: each set that is in use has a race of its
    own, which goes on with the next text of that set. better: the race that the latest round decided for its text's
    candidate, if it did. incumbent: of texts that have no set.
    Candidates are what a trellis over a running text finds, then what is proposed. share: of the time that decoding
    takes. open_sublayers: those that a trellis may leave out; without any there is none. on_trial: told of each set
    that was tried, its right positions and all.
    """

    def __init__(
        self,
        runner: Runner,
        costs: CostModel,
        proposals: Proposals,
        *,
        most_draft_tokens: int,
        open_sublayers: range = range(0),
        share: float = 0.02,
        seed: int = 0,
        on_trial: Callable[[int, int, int, Sequence], None] = lambda mask, right, tried, sequence: None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.incumbent: int | None = None
        self.better: Race | None = None
        self.seconds = 0.0
        self._runner, self._costs, self._proposals = runner, costs, proposals
        self._most = most_draft_tokens
        self._share = share
        self._random = random.Random(seed)
        self._on_trial = on_trial
        self._clock = clock
        self._races: dict[int, Race] = {}  # by incumbent, the latest one last
        self._losers: dict[tuple[int, int], None] = {}  # (incumbent, candidate)
        self._earned = 0.0
        self._open = open_sublayers
        self._growth: Growth | None = None
        self._grown: tuple[int, deque[int]] = 0, deque()  # for this incumbent
        self._waited = 0
        self._proposed = GROWING_EVERY

    @property
    def layer_set(self) -> LayerSet | None:
        """The incumbent as a set."""
        return None if self.incumbent is None else LayerSet(self._costs.num_layers, self.incumbent)

    def begin_with(self, skip_mask: int) -> None:
        """Start from this set, if there is none yet."""
        if self.incumbent is None:
            self.incumbent = skip_mask

    def suggest(self, skip_mask: int, incumbent: int | None = None) -> None:
        """Try this set next against that one, if none is being tried and it has not lost before."""
        incumbent = self.incumbent if incumbent is None else incumbent
        if incumbent is not None and (incumbent, skip_mask) not in self._losers:
            self._begin_race(skip_mask, incumbent)

    def round_done(self, sequence: Sequence, seconds: float) -> float:
        """A sequence that takes part has decoded for so long: try something on its text once that is earned.

        Returns the seconds that it took; the engine's thread, between two rounds.
        """
        self._earn(self._share * seconds, len(sequence.tokens))
        self.better = None
        incumbent = self.incumbent if sequence.layer_set is None else sequence.layer_set.skip_mask
        if incumbent is None:
            return 0.0
        started = self._clock()
        if self._time_to_grow(sequence, incumbent):
            if not self._grow(sequence, incumbent):
                return 0.0
        elif count := self._affordable(sequence):
            if incumbent not in self._races:  # within the time: a Gaussian process may be asked
                self._begin_race(self._next_candidate(incumbent), incumbent)
            if race := self._races.get(incumbent):
                self._try(sequence, race, count)
        else:
            return 0.0
        took = self._clock() - started
        self._earned -= took
        self.seconds += took
        return took

    def forget(self, sequence: Sequence) -> None:
        """It is over: its part of the cache will be another's."""
        if self._growth is not None and self._growth.sequence is sequence:
            self._growth = None

    def _begin_race(self, skip_mask: int, incumbent: int) -> None:
        """Unless one is on against this incumbent, or the candidate is itself, or leaves out nothing."""
        if incumbent in self._races or skip_mask in (0, incumbent):
            return
        while len(self._races) >= MOST_RACES:
            del self._races[next(iter(self._races))]
        self._races[incumbent] = Race(skip_mask, incumbent)

    def _earn(self, seconds: float, context: int) -> None:
        """What nobody could spend is not spent at once later: a reader would see it."""
        most = seconds_to_grow(self._costs, context) + self._expected(MOST_POSITIONS, context)
        self._earned = max(self._earned, min(self._earned + seconds, most))

    def _bearable(self, sequence: Sequence, seconds: float, tokens: int) -> bool:
        """Whether a request of so many tokens bears so much more of the search."""
        lasts = self._costs.seconds(1, sequence.kv_len) * tokens
        return sequence.search_seconds + seconds <= MOST_OF_A_REQUEST * lasts

    def _next_candidate(self, incumbent: int) -> int:
        grown_for, grown = self._grown
        if grown and grown_for == incumbent:
            return grown.popleft()
        self._proposed += 1
        return self._proposals.propose(incumbent)

    def _time_to_grow(self, sequence: Sequence, incumbent: int) -> bool:
        """Whether a trellis is due, and this text, or the one that it has begun with, lasts long enough for it."""
        untried = bool(self._grown[1]) and self._grown[0] == incumbent
        if incumbent in self._races or untried or not self._open or self._proposed < GROWING_EVERY:
            return False
        if self._growth is not None:
            return True
        context = len(sequence.tokens)
        rounds = 2 * self._costs.num_layers / steps_at_once(self._costs, context) + ROUNDS_TO_SPARE
        lasts = sequence.remaining >= TOKENS_A_ROUND * rounds and sequence.kv_len >= POSITIONS
        return lasts and self._bearable(sequence, seconds_to_grow(self._costs, context), sequence.max_tokens)

    def _grow(self, sequence: Sequence, incumbent: int) -> bool:
        """Go on with the trellis, or begin one once all of it is earned; False where there is nothing to do yet."""
        context = len(sequence.tokens)
        if self._growth is None:
            if self._earned < seconds_to_grow(self._costs, context):
                return False
            self._growth = Growth(self._runner, self._costs, self._open, sequence, self._positions(sequence, POSITIONS))
        if self._growth.sequence is not sequence:
            self._waited += 1
            self._growth = self._growth if self._waited < MOST_WAITED else None
            return False
        self._waited = 0
        for _ in range(steps_at_once(self._costs, context)):
            self._growth.step()
            if self._growth.done:
                self._grown = incumbent, deque(self._growth.candidates(partial(self._speed, context)))
                self._growth, self._proposed = None, 0
                break
        return True

    def _positions(self, sequence: Sequence, count: int) -> list[int]:
        """Some of the latest positions whose past the cache holds."""
        last = sequence.kv_len
        return sorted(self._random.sample(range(max(0, last - WINDOW), last), count))

    def _try(self, sequence: Sequence, race: Race, count: int) -> None:
        """Go on with a race."""
        assert sequence.extent is not None
        positions = self._positions(sequence, count)
        masks = [race.incumbent, race.skip_mask]
        trial = try_sets(self._runner, sequence.extent.start, sequence.tokens, positions, masks)
        race.note(trial)
        for mask, matches in zip(masks, trial.matches, strict=True):
            self._on_trial(mask, int(matches.sum()), count, sequence)
        self._judge(race, sequence.kv_len)

    def _judge(self, race: Race, context: int) -> None:
        """Promote the candidate, give it up, or try it further."""
        tried = race.tried
        to_beat = self._speed(context, race.incumbent, race.incumbent_right, tried)
        ahead = self._speed(context, race.skip_mask, race.right, tried) - to_beat
        won = tried >= ENOUGH and self._speed(context, race.skip_mask, race.surely_right, tried) > to_beat
        if won or tried >= MOST_TRIED or (tried >= LEAST_TRIED and ahead < MARGIN):
            self._proposals.note(race.skip_mask, ahead)
            del self._races[race.incumbent]
            if won:
                self.better = race
                self.incumbent = race.skip_mask if self.incumbent == race.incumbent else self.incumbent
            else:
                self._losers[race.incumbent, race.skip_mask] = None
                while len(self._losers) > MOST_LOSERS:
                    del self._losers[next(iter(self._losers))]

    def _speed(self, context: int, skip_mask: int, right: float, tried: int) -> float:
        """Expected tokens per second over plain decoding; below 1 where drafts lose."""
        alpha = (right + PRIOR_ALPHA * PRIOR_WEIGHT) / (tried + PRIOR_WEIGHT)
        return self._costs.drafting_speed(alpha, skip_mask, context, self._most, self._costs.short_head)

    def _affordable(self, sequence: Sequence) -> int:
        """At how many positions of a text a trial may be made: none until it is earned."""
        count, length = LEAST_POSITIONS, sequence.kv_len
        if length < count or self._earned < self._expected(count, length):
            return 0
        expected = self._expected(count, length)
        if sequence.search_seconds and not self._bearable(sequence, expected, sequence.num_output_tokens):
            return 0
        longest = LONGEST * self._costs.seconds(1, length)
        while 2 * count <= min(MOST_POSITIONS, length) and self._expected(2 * count, length) <= longest:
            count *= 2
        return count

    def _expected(self, positions: int, context: int) -> float:
        """Seconds of a trial: the full model, the incumbent and a candidate at each position."""
        return self._costs.seconds(3 * positions, context)
