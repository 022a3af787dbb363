"""What does the full model say about each draft? Applies the engine's acceptance rule to a pass's logits."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch

from swift_backend.logprobs import token_logprobs
from swift_backend.noise import Purpose
from swift_backend.sampling import Draw, draw_from, draw_tokens, draw_uniform, mend, probabilities
from swift_backend.sequence import Sequence, TokenLogprob
from swift_backend.speculation.acceptance import accept_coupled, accept_rejection
from swift_backend.speculation.draft import Draft


@dataclass(frozen=True, slots=True)
class Verdict:
    """The tokens that a round yields: the first num_accepted were drafted, the last is the full model's own.

    logprobs: one per token where the request asks for them, else empty. broken: the logits after token_ids were no
    numbers; the tokens before are good (and all of them were drafted).
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    broken: bool = False

    @property
    def num_accepted(self) -> int:
        return len(self.token_ids) if self.broken else len(self.token_ids) - 1


@torch.inference_mode()
def judge(due: Seq[tuple[Sequence, Draft]], logits: torch.Tensor, rule: str) -> list[Verdict]:
    """Verdicts for sequences whose rows of logits, float32 [sum of len(draft) + 1, vocab], follow each other."""
    logits, usable = mend(logits)
    draws = [draw for sequence, draft in due for draw in _draws(sequence, draft)]
    tokens = draw_tokens(logits, draws) if rule == "coupled" else []
    verdicts, start = [], 0
    for sequence, draft in due:
        rows = slice(start, start + len(draft) + 1)
        if rule == "coupled":
            kept = accept_coupled(draft.token_ids, tokens[rows])
        else:
            kept = _accept_by_rejection(draft, logits[rows], draws[rows])
        verdicts.append(_verdict(sequence, kept, logits[rows], usable[rows]))
        start = rows.stop
    return verdicts


def _verdict(sequence: Sequence, kept: list[int], logits: torch.Tensor, usable: list[bool]) -> Verdict:
    """What was kept, up to the first row that has no numbers."""
    good = usable.index(False) if False in usable else len(usable)
    tokens = kept[:good]
    wanted = sequence.params.logprobs
    logprobs = () if wanted is None else token_logprobs(logits[: len(tokens)], tokens, wanted)
    return Verdict(tuple(tokens), logprobs, broken=len(tokens) < len(kept))


def _draws(sequence: Sequence, draft: Draft) -> list[Draw]:
    return [Draw.after(sequence, draft.token_ids[:i]) for i in range(len(draft) + 1)]


def _accept_by_rejection(draft: Draft, logits: torch.Tensor, draws: Seq[Draw]) -> list[int]:
    def accept_at(i: int) -> float:
        return draw_uniform(replace(draws[i], purpose=Purpose.ACCEPT))

    def draw_at(i: int, weights: torch.Tensor) -> int:
        return draw_from(weights, replace(draws[i], purpose=Purpose.RECOVER if i < len(draft) else Purpose.TOKEN))

    target = probabilities(logits, draws)
    return accept_rejection(draft.token_ids, draft.probs, target, accept_at, draw_at)
