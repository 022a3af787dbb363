"""How long may drafts be while several sequences run? As long as they bring more tokens per second than none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swift_backend.pass_times import PassTimes

# Evidence fades with every drafting round, and with every round in which nobody may draft, so that it is tried again.
MEMORY = 0.97
# Until there is evidence, drafts are taken to be sure and right.
PRIOR = 0.5


@dataclass(slots=True)
class Evidence:
    """Draft passes of single sequences, and how many of them gave a draft token, and one that was accepted."""

    passes: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0

    def add(self, passes: int, drafted: int, accepted: int) -> None:
        """Count one sequence's round."""
        self.passes += passes
        self.drafted += drafted
        self.accepted += accepted

    def fade(self) -> None:
        """Count what is known a little less."""
        self.passes *= MEMORY
        self.drafted *= MEMORY
        self.accepted *= MEMORY

    @property
    def sure(self) -> float:
        """The share of draft passes that are sure enough to give a token."""
        return (self.drafted + PRIOR) / (self.passes + PRIOR)

    @property
    def right(self) -> float:
        """The share of drafted tokens that are accepted."""
        return (self.accepted + PRIOR) / (self.drafted + PRIOR)


class BatchLimit:
    """The draft length with the most committed tokens per second, by what passes cost and drafts brought lately.

    Without drafts a pass brings n tokens, one for each sequence that decodes and those of prompts, which count alike:
    others wait for them. m sequences draft, a share s of draft passes is sure, and a share a of their tokens accepted.
    Then a round with drafts of up to k tokens brings n + m * sum((s*a)^i, i = 1…k) tokens, and takes the time of one
    full pass over n + m * sum(s^i) rows and of k draft passes, whose i-th has m * s^(i-1) rows.
    """

    def __init__(self, times: PassTimes, draft_cost: float) -> None:
        """draft_cost: the time of a draft pass over that of a full pass with as many rows; measured from then on."""
        self._times = times
        self._draft_cost = draft_cost
        self._evidence = Evidence()

    def longest(self, num_tokens: int, num_drafting: int, most: int, context: float = 0.0) -> int:
        """The length, at most `most`; a request that is alone is none of our business.

        num_tokens: what the pass brings without drafts. context: how many keys a row looks at, on average.
        """
        if num_tokens < 2 or not num_drafting:
            return most
        best, best_rate = 0, num_tokens / self._seconds(num_tokens, context)
        sure, right = self._evidence.sure, self._evidence.right
        tokens, rows, drafting = float(num_tokens), float(num_tokens), 0.0
        for i in range(1, most + 1):
            open_rows = num_drafting * sure ** (i - 1)
            drafting += min(open_rows, 1.0) * self._draft_cost * self._seconds(max(open_rows, 1.0), context)
            tokens += num_drafting * (sure * right) ** i
            rows += num_drafting * sure**i
            rate = tokens / (self._seconds(rows, context) + drafting)
            if rate > best_rate:
                best, best_rate = i, rate
        if best == 0:
            self._evidence.fade()
        return best

    def note_round(self, rounds: Iterable[tuple[int, int, int]], seconds: float, context: float = 0.0) -> None:
        """Learn from a step's drafts: (draft passes, drafted, accepted) of each sequence, and the seconds they took.

        context: see longest.
        """
        rounds = [one for one in rounds if one[0]]
        if not rounds:
            return
        self._evidence.fade()
        for passes, drafted, accepted in rounds:
            self._evidence.add(passes, drafted, accepted)
        longest = max(passes for passes, _, _ in rounds)
        rows = [sum(passes > i for passes, _, _ in rounds) for i in range(longest)]
        cost = seconds / sum(self._seconds(count, context) for count in rows)
        self._draft_cost += (1 - MEMORY) * (min(cost, 2.0) - self._draft_cost)

    def _seconds(self, rows: float, context: float) -> float:
        return self._times.seconds(rows, rows * context)
