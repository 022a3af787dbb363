"""What does the model propose when it skips its own layers? The guide's phase 2: draft while sure enough."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from time import perf_counter

import torch

from swift_backend.batch import RowGroup
from swift_backend.noise import Purpose
from swift_backend.params import SamplingParams
from swift_backend.runner import Runner
from swift_backend.sampling import Draw, draw_from, draw_tokens, mend, probabilities
from swift_backend.sequence import Sequence
from swift_backend.speculation.draft import Draft
from swift_backend.speculation.layer_set import LayerSet

DRAFTER = "layer_skip"
GREEDY_CONFIDENCE = 0.65
SAMPLING_CONFIDENCE = 0.80
SAMPLING_TEMPERATURE = 0.7


def confidence_threshold(params: SamplingParams) -> float:
    """ε of the guide: 0.65 at temperature 0, 0.80 from 0.7 on, a line between; the request's own value wins."""
    if params.confidence_threshold is not None:
        return params.confidence_threshold
    along = min(1.0, params.temperature / SAMPLING_TEMPERATURE)
    return GREEDY_CONFIDENCE + along * (SAMPLING_CONFIDENCE - GREEDY_CONFIDENCE)


class LayerSkipDrafter:
    """Drafts with the active layers of one layer set for all sequences of a pass.

    A layer costs the same for one row as for some, so sequences with different sets would pay for the union of their
    layers: all of them take one set (LayerSet.common).

    A token whose confidence, max softmax(logits), is below ε ends the draft and is not part of it. The draft pass
    reads the full model's cache and writes its own keys and values into the tail, where verification overwrites them.
    """

    def __init__(self, runner: Runner, *, with_probs: bool) -> None:
        self._runner = runner
        self._with_probs = with_probs  # rejection needs q, and noise of its own; coupling shares the target's

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int]) -> list[Draft]:
        """See Drafter; sequences without a layer set, or with an empty one, get an empty draft."""
        paths = [_Path(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]
        group = [path for path in paths if path.layer_set and path.open]
        if group:
            started = perf_counter()
            layer_set = LayerSet.common([path.layer_set for path in group if path.layer_set])
            while active := [path for path in group if path.open]:
                self._extend(active, layer_set.kept)
            for path in group:
                path.seconds = (perf_counter() - started) / len(group)
                path.skip_mask = layer_set.skip_mask
        return [path.finish(self._with_probs) for path in paths]

    @torch.inference_mode()
    def _extend(self, paths: list[_Path], kept: Seq[int]) -> None:
        """One draft pass: each path grows by a token or closes."""
        logits, usable = mend(self._runner.forward([path.row() for path in paths], kept))
        sure = torch.exp(logits.max(dim=-1).values - torch.logsumexp(logits, dim=-1)).tolist()
        purpose = Purpose.DRAFT if self._with_probs else Purpose.TOKEN
        draws = [path.draw(purpose) for path in paths]
        if self._with_probs:
            probs = list(probabilities(logits, draws))
            tokens = [draw_from(row, draw) for row, draw in zip(probs, draws, strict=True)]
        else:
            probs, tokens = [], draw_tokens(logits, draws)
        for i, path in enumerate(paths):
            path.append(tokens[i], sure[i] if usable[i] else -1.0, probs[i] if probs else None)


class _Path:
    """A draft in the making."""

    def __init__(self, sequence: Sequence, budget: int) -> None:
        self._sequence = sequence
        self._budget = budget
        self._threshold = confidence_threshold(sequence.params)
        self._tokens: list[int] = []
        self._probs: list[torch.Tensor] = []
        self._confidences: list[float] = []
        self._unsure = False
        self.seconds = 0.0
        self.skip_mask = 0
        self.layer_set: LayerSet | None = sequence.layer_set

    @property
    def open(self) -> bool:
        return not self._unsure and len(self._tokens) < self._budget

    def row(self) -> RowGroup:
        """The newest token, at its slot: the last committed one, then the drafted ones."""
        sequence = self._sequence
        assert sequence.extent is not None
        token = self._tokens[-1] if self._tokens else sequence.tokens[-1]
        return RowGroup((token,), sequence.kv_len + len(self._tokens), sequence.extent.start, 1)

    def draw(self, purpose: Purpose) -> Draw:
        return Draw.after(self._sequence, self._tokens, purpose)

    def append(self, token: int, confidence: float, probs: torch.Tensor | None) -> None:
        if confidence < self._threshold:
            self._unsure = True
            return
        self._tokens.append(token)
        self._confidences.append(confidence)
        if probs is not None:
            self._probs.append(probs)

    def finish(self, with_probs: bool) -> Draft:
        probs = tuple(self._probs) if with_probs else None
        passes = len(self._tokens) + self._unsure
        skip_mask = self.skip_mask if passes else 0
        return Draft(tuple(self._tokens), probs, self.seconds, passes, DRAFTER, skip_mask, tuple(self._confidences))
