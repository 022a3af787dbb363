"""What does the full model say about each draft? Applies the engine's acceptance rule to a pass's logits."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from swift_backend.sampling import Draw, Purpose, draw_from, draw_tokens, probabilities, uniform
from swift_backend.sequence import Sequence
from swift_backend.speculation.acceptance import accept_coupled, accept_rejection
from swift_backend.speculation.draft import Draft


@dataclass(frozen=True, slots=True)
class Verdict:
    """The tokens that a round yields: the first num_accepted were drafted, the last is the full model's own."""

    token_ids: tuple[int, ...]

    @property
    def num_accepted(self) -> int:
        return len(self.token_ids) - 1


def judge(due: Seq[tuple[Sequence, Draft]], logits: torch.Tensor, rule: str) -> list[Verdict]:
    """Verdicts for sequences whose rows of logits, float32 [sum of len(draft) + 1, vocab], follow each other."""
    draws = [draw for sequence, draft in due for draw in _draws(sequence, len(draft) + 1)]
    tokens = draw_tokens(logits, draws) if rule == "coupled" else None
    verdicts, start = [], 0
    for _, draft in due:
        end = start + len(draft) + 1
        if tokens is not None:
            kept = accept_coupled(draft.token_ids, tokens[start:end])
        else:
            kept = _accept_by_rejection(draft, logits[start:end], draws[start:end])
        verdicts.append(Verdict(tuple(kept)))
        start = end
    return verdicts


def _draws(sequence: Sequence, count: int) -> list[Draw]:
    first = len(sequence.tokens)
    return [Draw(sequence.params, sequence.seed, first + i) for i in range(count)]


def _accept_by_rejection(draft: Draft, logits: torch.Tensor, draws: Seq[Draw]) -> list[int]:
    def named(i: int, purpose: Purpose) -> Draw:
        return Draw(draws[i].params, draws[i].seed, draws[i].position, purpose)

    def accept_at(i: int) -> float:
        return float(uniform(named(i, Purpose.ACCEPT), torch.zeros(1, dtype=torch.int64, device=logits.device)))

    def draw_at(i: int, weights: torch.Tensor) -> int:
        return draw_from(weights, named(i, Purpose.RECOVER if i < len(draft) else Purpose.TOKEN))

    target = [probabilities(row, draw.params) for row, draw in zip(logits, draws, strict=True)]
    return accept_rejection(draft.token_ids, draft.probs or (), target, accept_at, draw_at)
