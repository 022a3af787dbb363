"""What becomes one draft? What was found in the text, then what draft passes say, each with what it is worth."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from swift_backend.scheduler import Work
from swift_backend.sequence import Sequence
from swift_backend.speculation.draft import Draft
from swift_backend.speculation.draft_passes import Path
from swift_backend.speculation.drafting_state import DraftingState
from swift_backend.speculation.row_choice import Candidate

# What was found goes on beside draft passes where each token is as likely as this.
GOOD_CHANCE = 0.6


@dataclass(slots=True)
class Making:
    """A draft in the making: what was found in the text, then what draft passes say.

    weight: what a token is worth. chances[i]: that the path's token i counts, times its worth. found: tokens that could
    begin the path, with the same of theirs.
    """

    owner: int
    work: Work
    path: Path
    weight: float
    found: list[int] = field(default_factory=list)
    found_chances: list[float] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    siblings: list[Candidate] = field(default_factory=list)

    @property
    def sequence(self) -> Sequence:
        return self.work.sequence

    @property
    def state(self) -> DraftingState:
        state: DraftingState = self.work.sequence.drafting
        return state

    @property
    def reach(self) -> float:
        """What a token after the path's is worth, if it is right."""
        return self.chances[-1] if self.chances else self.weight

    def take_found(self, count: int | None = None) -> None:
        """Begin the path with the first `count` tokens that were found, all by default."""
        self.path.append_found(self.found[:count])
        self.chances = self.found_chances[:count]

    @property
    def next_found(self) -> tuple[int, float] | None:
        """What was found after the path's tokens, if these are the first ones that were found, and its chance there."""
        depth = len(self.path.tokens)
        if depth >= len(self.found) or self.path.tokens != self.found[:depth]:
            return None
        return self.found[depth], self.found_chances[depth] / (self.found_chances[depth - 1] if depth else self.weight)

    def found_worth(self, row: float) -> float:
        """What verifying the tokens that were found is worth, where a row costs so much."""
        return sum(chance - row for chance in self.found_chances if chance > row)

    def go_on_with_found(self) -> None:
        """After a token that a draft pass agrees to, what was found after it, as long as that is likely."""
        while (found := self.next_found) and self.path.room:
            token, chance = found
            if chance < GOOD_CHANCE:
                return
            reach = self.reach
            self.path.append_found([token])
            self.chances.append(reach * chance)

    def draw(self, step: Step) -> float:
        """The price of drawing one of its tokens."""
        return step.draw if self.sequence.params.temperature > 0 else 0.0

    def row(self, step: Step) -> float:
        """The price of verifying one of its tokens."""
        return step.row + self.draw(step)

    def candidates(self, step: Step, least: float) -> list[Candidate]:
        """What could be verified, less the price of drawing it, if that is worth so much; no more than may be drafted.

        Along the path tokens can only be worth less and less.
        """
        draw = self.draw(step)
        found: list[Candidate] = []
        for depth, chance in enumerate(self.chances):
            if chance - draw < least:
                break
            token, drafter = self.path.tokens[depth], self.path.drafters[depth]
            found.append(Candidate(chance - draw, self.owner, depth, token, drafter))
        siblings = [replace(one, chance=one.chance - draw) for one in self.siblings] if draw else self.siblings
        found += [one for one in siblings if one.chance >= least]
        if len(found) > self.work.draft_budget:
            found.sort(key=lambda one: (-one.chance, one.depth, one.sibling))
        return found[: self.work.draft_budget]


@dataclass(frozen=True, slots=True)
class Step:
    """What counts in this step. rows: of the full pass without drafts, `decoding` of which want logits.

    price: of a second; row: that of a row of the full pass; draw: of drawing one with a temperature.
    """

    rows: int
    decoding: int
    context: float
    price: float
    row: float
    draw: float = 0.0

    @property
    def only_decoding(self) -> bool:
        """No prompt is in it."""
        return self.rows == self.decoding


@dataclass(frozen=True, slots=True)
class Offer:
    """What a draft pass would bring one sequence, in tokens, before the price of the pass.

    extends: after how many of the tokens that were found.
    """

    making: Making
    gain: float
    extends: int = 0


def comb(path: Path, chosen: Seq[Candidate]) -> Draft:
    """The draft of the chosen tokens of a path: its chain, then the siblings."""
    length = sum(not one.sibling for one in chosen)
    siblings = sorted((one for one in chosen if one.sibling), key=lambda one: one.depth)
    return path.draft(length, [(one.depth - 1, one.token_id, one.drafter) for one in siblings])
