"""What does the model propose when it skips its own layers? One draft pass, for some sequences at once.

A layer costs the same for one row as for some, so sequences with different sets would pay for the union of their
layers: all of a pass take one set (LayerSet.common). A draft pass reads the full model's cache and writes its own keys
and values into the tail, where verification overwrites them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter

import torch

from swift_backend.batch import RowGroup
from swift_backend.model.short_head import ShortHead
from swift_backend.noise import Purpose
from swift_backend.runner import Runner
from swift_backend.sampling import Draw, draw_best, draw_from, mend, probabilities
from swift_backend.sequence import Sequence
from swift_backend.speculation.cost_model import CostModel
from swift_backend.speculation.draft import LAYER_SKIP, NGRAM, Draft, Guess
from swift_backend.speculation.layer_set import LayerSet


@dataclass(frozen=True, slots=True)
class Said:
    """What a pass said about the next token of a path.

    token_ids: its favourites, the best first, with the noise that the full model will draw with. confidence: max
    softmax(logits), −1 where they were no numbers. probs: what the first was drawn from, float64 [vocab], where the
    acceptance rule needs it.
    """

    token_ids: tuple[int, ...]
    confidence: float
    probs: torch.Tensor | None = None


class Path:
    """A draft in the making: a chain of tokens after the committed ones, some of which may have been found.

    unsure: its owner wants no more of it. passes, seconds: of draft passes, its share.
    """

    def __init__(self, sequence: Sequence, budget: int) -> None:
        self.sequence = sequence
        self.unsure = False
        self.tokens: list[int] = []
        self.drafters: list[str] = []
        self.guesses: list[Guess] = []
        self.passes, self.seconds, self.skip_mask = 0, 0.0, 0
        self._budget = budget
        self._computed = 0  # how many tokens of the chain a pass has been over
        self._probs: list[torch.Tensor | None] = []

    @property
    def room(self) -> int:
        """How many tokens it may still grow by."""
        return self._budget - len(self.tokens)

    def row_group(self) -> RowGroup:
        """What no draft pass has been over yet: the newest token, at first with the committed and the found ones."""
        sequence = self.sequence
        assert sequence.extent is not None
        begin = self._computed if self.passes else -1
        rows = [sequence.tokens[-1], *self.tokens][begin + 1 :]
        return RowGroup(rows, sequence.kv_len + begin + 1, sequence.extent.start, 1)

    def heard(self, said: Said, skip_mask: int, seconds: float) -> None:
        """Note a pass over row_group()."""
        self.passes += 1
        self.seconds += seconds
        self.skip_mask = skip_mask
        self._computed = len(self.tokens)
        self.guesses.append(Guess(tuple(self.tokens), said.confidence, said.token_ids))

    def append(self, said: Said) -> None:
        """Go on with the favourite."""
        self.tokens.append(said.token_ids[0])
        self.drafters.append(LAYER_SKIP)
        self._probs.append(said.probs)

    def append_found(self, tokens: Seq[int]) -> None:
        """Go on with what came next in the text."""
        self.tokens += tokens
        self.drafters += [NGRAM] * len(tokens)
        self._probs += [None] * len(tokens)

    def draft(self, length: int | None = None, siblings: Seq[tuple[int, int, str]] = ()) -> Draft:
        """The first `length` tokens of it, all by default, and alternatives: (node before, −1 for none; token; who)."""
        length = len(self.tokens) if length is None else length
        probs = self._probs[:length] + [None] * len(siblings)
        return Draft(
            (*self.tokens[:length], *(token for _, token, _ in siblings)),
            (*range(-1, length - 1), *(parent for parent, _, _ in siblings)),
            (*self.drafters[:length], *(who for _, _, who in siblings)),
            length,
            probs=tuple(probs) if any(one is not None for one in probs) else None,
            seconds=self.seconds,
            passes=self.passes,
            skip_mask=self.skip_mask,
            guesses=tuple(self.guesses),
        )


class DraftPasses:
    """Runs draft passes.

    short_head: for passes that may overlook unlikely tokens; None where all passes score the whole vocabulary.
    """

    def __init__(self, runner: Runner, costs: CostModel, *, with_probs: bool) -> None:
        """costs: learn from each pass.

        with_probs: rejection needs q, and noise of its own; coupling shares the target's.
        """
        self._runner = runner
        self._costs = costs
        self._with_probs = with_probs
        self.short_head: ShortHead | None = None

    @torch.inference_mode()
    def extend(self, paths: Seq[Path], layer_set: LayerSet, favourites: int = 1, *, short: bool = False) -> list[Said]:
        """One pass: what it says about the next token of each path, which may be appended or not. Mutates paths.

        short: look at the likeliest part of the vocabulary only, if there is a short head.
        """
        started = perf_counter()
        groups = [path.row_group() for path in paths]
        head = self.short_head if short else None
        logits, usable = mend(self._runner.forward(groups, layer_set.kept, head=head))
        sure = torch.exp(logits.amax(dim=-1) - torch.logsumexp(logits, dim=-1)).tolist()
        purpose = Purpose.DRAFT if self._with_probs else Purpose.TOKEN
        draws = [Draw.after(path.sequence, path.tokens, purpose) for path in paths]
        probs: list[torch.Tensor | None] = [None] * len(paths)
        if self._with_probs:
            drawn_from = probabilities(logits, draws)
            probs = list(drawn_from)
            tokens: list[tuple[int, ...]] = [
                (draw_from(row, draw),) for row, draw in zip(drawn_from, draws, strict=True)
            ]
        else:
            tokens = draw_best(logits, draws, favourites)
        confidences = [one if fine else -1.0 for one, fine in zip(sure, usable, strict=True)]
        said = [Said(*one) for one in zip(tokens, confidences, probs, strict=True)]
        took = perf_counter() - started
        context = sum(len(path.sequence.tokens) for path in paths) / len(paths)
        rows = sum(len(group.token_ids) for group in groups)
        self._costs.note(took, rows, context, layer_set.skip_mask, len(paths), head.share if head else 1.0)
        share = took / len(paths)
        for path, one in zip(paths, said, strict=True):
            path.heard(one, layer_set.skip_mask, share)
        return said


def common_set(paths: Seq[Path]) -> LayerSet:
    """The set that these paths, each of which has one, draft with together."""
    return LayerSet.common([path.sequence.layer_set for path in paths if path.sequence.layer_set])
