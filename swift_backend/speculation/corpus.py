"""On which texts are layer sets tried? Answers of the full model, whose keys and values stay in the cache meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch

from swift_backend.batch import RowGroup
from swift_backend.model.shadow import Shadow
from swift_backend.runner import Runner
from swift_backend.speculation.matchness import Trial, try_sets
from swift_backend.speculation.similarity import LayerSimilarity, Profile

GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and its answer, at the cache's slots from `start` on.

    category: where it comes from. first: the position of the prompt's last token, after which the answer begins.
    phase: where in the answer a few positions are taken from, between its beginning (0) and its end (1).
    """

    category: str
    tokens: Seq[int]
    first: int
    start: int
    profile: Profile
    phase: float = 0.0

    def positions(self, most: int) -> range:
        """Up to so many consecutive positions whose next token belongs to the answer."""
        last = len(self.tokens) - 1
        begin = self.first + round(self.phase * max(0, last - self.first - most))
        return range(begin, min(begin + most, last))


@dataclass(slots=True)
class Corpus:
    """Texts that lie in the cache of a runner which nobody else uses."""

    runner: Runner
    texts: list[Text] = field(default_factory=list)
    chunk: int = 512

    def add(self, category: str, prompt: Seq[int], answer: Seq[int]) -> bool:
        """Compute a text; False where the model's context, or the cache, has no room for it."""
        tokens = [*prompt, *answer]
        config = self.runner.decoder.config
        extent = self.runner.cache.reserve(len(tokens)) if len(tokens) <= config.context_length else None
        if extent is None:
            return False
        profile = torch.zeros(3 * config.num_layers)
        for begin in range(0, len(tokens), self.chunk):
            rows = tokens[begin : begin + self.chunk]
            group, count = RowGroup(rows, begin, extent.start, 0), min(len(rows), len(prompt) - begin)
            if count > 0:  # of the prompt, as requests are known by theirs
                seen = LayerSimilarity([(0, count)])
                self.runner.forward([group], observe=seen.observe)
                profile += count / len(prompt) * seen.profiles()[0]
            else:
                self.runner.forward([group])
        phase = len(self.texts) * GOLDEN % 1  # all parts of answers, also within a category
        self.texts.append(Text(category, tokens, len(prompt) - 1, extent.start, Profile(profile), phase))
        return True

    def trials(self, skips: Seq[int], most_positions: int, texts: Iterable[Text] | None = None) -> list[Trial]:
        """What these layer sets would have drafted, text by text."""
        chosen = self.texts if texts is None else texts
        return [try_sets(self.runner, one.start, one.tokens, one.positions(most_positions), skips) for one in chosen]

    def shadows(self, most_positions: int, texts: Iterable[Text]) -> list[Shadow]:
        """The same positions, to be asked sublayer by sublayer."""
        chosen = [(one, one.positions(most_positions)) for one in texts]
        return [self.runner.shadow(one.start, [one.tokens[i] for i in at], at) for one, at in chosen]
