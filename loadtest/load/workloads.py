"""What do users ask? Prompts of one kind, from our sample or a user's own file, in an order that a seed fixes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.load.sample import SAMPLE
from swift_backend.text import dataset

# Characters of a long prompt: some 1,500 tokens of English.
LONG_PROMPT = 6000


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of traffic. categories: of the sample, () for all of them; max_tokens: of an answer."""

    name: str
    about: str
    max_tokens: int
    categories: tuple[str, ...] = ()


WORKLOADS = {
    one.name: one
    for one in (
        Workload("chat", "short questions, short answers", 64, ("chat",)),
        Workload("long", "a question about a long text", 48, ("summaries",)),
        Workload("copy", "answers that repeat their prompt", 160, ("copy",)),
        Workload("code", "functions to write", 128, ("code",)),
        Workload("mixed", "all of these, and maths and translation", 64),
    )
}


def prompts_of(workload: Workload, files: Sequence[Path] = ()) -> list[str]:
    """Its prompts, in order; of the files, all categories. Raises InvalidRequest or OSError for what is no dataset."""
    rows = [row for file in files or [SAMPLE] for row in dataset.read_rows(file)]
    chosen = [row.prompt for row in rows if files or not workload.categories or row.category in workload.categories]
    if workload.name == "long":
        text = "\n\n".join(chosen)
        return [f"{(text * (1 + LONG_PROMPT // len(text)))[:LONG_PROMPT]}\n\n{prompt}" for prompt in chosen]
    return chosen


class Deck:
    """Prompts in each user's own order, the same for the same seed; all are dealt before one comes again."""

    def __init__(self, prompts: Sequence[str], seed: int) -> None:
        """ValueError without prompts."""
        if not prompts:
            raise ValueError("no prompts")
        self._prompts = list(prompts)
        self._seed = seed

    def dealt_to(self, user: int) -> Dealt:
        """For the user of this number."""
        return Dealt(self._prompts, random.Random(f"{self._seed}/{user}"))


class Dealt:
    """One user's prompts."""

    def __init__(self, prompts: Sequence[str], rng: random.Random) -> None:
        self._prompts, self._rng = list(prompts), rng
        self._left: list[str] = []

    def next(self) -> str:
        """The next prompt."""
        if not self._left:
            self._left = self._rng.sample(self._prompts, len(self._prompts))
        return self._left.pop()
