"""What would the model say of places that are not there yet? Lookahead decoding's drafter (Fu et al., 2024).

Beside what is verified, a full pass has the rows of a window: guesses of the next tokens, and what the model made of
each of them, a few steps long. What it says after those is a Jacobi iteration: it joins them to n-grams, which are
drafted when their first token comes up. No draft pass and no other text is needed; the window's rows are the price.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from swift_backend.scheduler import Work
from swift_backend.sequence import Sequence
from swift_backend.speculation.draft import LOOKAHEAD, Draft

# Steps of a guess's trajectory, itself included; an n-gram is these and what the model says then: N − 1 of the paper.
LEVELS = 2
# N-grams that begin with one token; of more, the oldest is forgotten.
MOST_KNOWN = 16


@dataclass(slots=True)
class Window:
    """One request's guesses and n-grams.

    levels: the trajectories' steps, the oldest first, each with a token for every column; at most LEVELS. ngrams: what
    came after a token, the latest last.
    """

    levels: list[list[int]]
    ngrams: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)

    @classmethod
    def begun(cls, sequence: Sequence, columns: int) -> Window:
        """With guesses out of the request's own text, the same for the same seed."""
        return cls([random.Random(sequence.seed).choices(sequence.tokens, k=columns)])

    @property
    def rows(self) -> list[int]:
        """The window's tokens, level by level."""
        return [token for level in self.levels for token in level]

    @property
    def parents(self) -> list[int]:
        """The row before each: a guess follows the guess of the column before it, a later step the step before it."""
        columns = len(self.levels[0])
        return [row - 1 if row < columns else row - columns for row in range(len(self.rows))]

    def note(self, following: Seq[int]) -> None:
        """The model's token after each of the rows; () where the window was not part of the pass."""
        if not following:
            return
        newest = list(following[-len(self.levels[0]) :])
        if len(self.levels) == LEVELS:
            for first, *rest in zip(*self.levels, newest, strict=True):
                self._remember(first, tuple(rest))
            self.levels.pop(0)  # the next ones are of the places that come after it
        self.levels.append(newest)

    def continuations(self, token: int, most: int) -> list[tuple[int, ...]]:
        """What is known to come after a token, the latest first; at most so many."""
        return self.ngrams.get(token, [])[: -most - 1 : -1]

    def _remember(self, first: int, rest: tuple[int, ...]) -> None:
        known = self.ngrams.setdefault(first, [])
        if rest in known:
            known.remove(rest)
        known.append(rest)
        del known[:-MOST_KNOWN]


class LookaheadDrafter:
    """Drafts the n-grams that begin with the latest token, as branches, and adds the window's rows where they fit."""

    def draft(self, plan: Seq[Work]) -> list[Draft]:
        """See Drafter."""
        return [self._draft(work) if work.draft_budget else Draft() for work in plan]

    def _draft(self, work: Work) -> Draft:
        sequence, budget = work.sequence, work.draft_budget
        if sequence.lookahead is None:
            # As many rows for the window as for branches, as in the paper (G = W).
            sequence.lookahead = Window.begun(sequence, max(1, budget // (2 * LEVELS)))
        window: Window = sequence.lookahead
        rows, parents = window.rows, window.parents
        if len(rows) > budget - LEVELS:  # the end is near, or the batch is full: what is known is worth more
            rows, parents = [], []
        tokens, before = branches(window.continuations(sequence.tokens[-1], MOST_KNOWN), budget - len(rows))
        shifted = [parent + len(tokens) if parent >= 0 else parent for parent in parents]
        drafters = (LOOKAHEAD,) * (len(tokens) + len(rows))
        return Draft((*tokens, *rows), (*before, *shifted), drafters, window=len(rows))


def branches(continuations: Seq[Seq[int]], most: int) -> tuple[list[int], list[int]]:
    """Continuations as one tree in which common beginnings are shared: tokens and parents of at most so many nodes."""
    tokens: list[int] = []
    parents: list[int] = []
    nodes: dict[tuple[int, ...], int] = {(): -1}
    for one in continuations:
        new = [tuple(one[:length]) for length in range(1, len(one) + 1) if tuple(one[:length]) not in nodes]
        if len(tokens) + len(new) > most:
            break
        for path in new:
            nodes[path] = len(tokens)
            tokens.append(path[-1])
            parents.append(nodes[path[:-1]])
    return tokens, parents
