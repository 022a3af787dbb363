"""What does the full model say about each draft? Applies the engine's acceptance rule to a pass's logits."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch

from swift_backend.logprobs import token_logprobs
from swift_backend.noise import Purpose
from swift_backend.sampling import Draw, draw_from, draw_tokens, draw_uniform, mend, probabilities
from swift_backend.sequence import Sequence, TokenLogprob
from swift_backend.speculation.acceptance import Accepted, accept_coupled, accept_rejection
from swift_backend.speculation.draft import Draft


@dataclass(frozen=True, slots=True)
class Verdict:
    """The tokens that a round yields: the first ones were drafted, the last is the full model's own.

    path: which nodes of the draft the drafted ones were. logprobs: one per token where the request asks for them, else
    empty. broken: the logits after token_ids were no numbers; the tokens before are good (and all of them were
    drafted). following: the full model's token after each row of the draft's window.
    """

    token_ids: tuple[int, ...]
    path: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    broken: bool = False
    following: tuple[int, ...] = ()


@torch.inference_mode()
def judge(due: Seq[tuple[Sequence, Draft]], logits: torch.Tensor, rule: str) -> list[Verdict]:
    """Verdicts for sequences whose rows of logits, float32 [sum of len(draft) + 1, vocab], follow each other.

    The rows of a draft: that of the last committed token, then one for each node.
    """
    logits, usable = mend(logits)
    draws = [draw for sequence, draft in due for draw in _draws(sequence, draft)]
    tokens = draw_tokens(logits, draws) if rule == "coupled" else []
    verdicts, start = [], 0
    for sequence, draft in due:
        count, end = draft.proposed, start + len(draft) + 1
        rows, window = slice(start, start + count + 1), slice(start + count + 1, end)
        if rule == "coupled":
            accepted = accept_coupled(draft.token_ids[:count], draft.parents[:count], tokens[rows])
            following = tokens[window]
        else:
            accepted = _accept_by_rejection(draft, logits[rows], draws[rows])
            following = logits[window].argmax(dim=-1).tolist()
        verdict = _verdict(sequence, draft, accepted, logits[rows], usable[rows])
        verdicts.append(replace(verdict, following=tuple(following)) if following else verdict)
        start = end
    return verdicts


def _verdict(sequence: Sequence, draft: Draft, accepted: Accepted, logits: torch.Tensor, usable: list[bool]) -> Verdict:
    """What was accepted, up to the first row that has no numbers."""
    path, last = accepted
    kept = [*(draft.token_ids[node] for node in path), last]
    rows = [0, *(node + 1 for node in path)]
    good = next((i for i, row in enumerate(rows) if not usable[row]), len(rows))
    tokens = kept[:good]
    wanted = sequence.params.logprobs
    logprobs = () if wanted is None else token_logprobs(logits[rows[:good]], tokens, wanted)
    return Verdict(tuple(tokens), tuple(path[:good]), logprobs, broken=good < len(kept))


def _draws(sequence: Sequence, draft: Draft) -> list[Draw]:
    return [Draw.after(sequence, draft.before(node)) for node in range(-1, len(draft))]


def _accept_by_rejection(draft: Draft, logits: torch.Tensor, draws: Seq[Draw]) -> Accepted:
    def accept_at(node: int) -> float:
        parent = draft.parents[node]
        alternative = draft.parents[:node].count(parent)  # each with a number of its own
        return draw_uniform(replace(draws[parent + 1], purpose=Purpose.ACCEPT), alternative)

    def draw_at(node: int, weights: torch.Tensor) -> int:
        purpose = Purpose.RECOVER if node in draft.parents else Purpose.TOKEN
        return draw_from(weights, replace(draws[node + 1], purpose=purpose))

    target, count = probabilities(logits, draws), draft.proposed
    return accept_rejection(draft.token_ids[:count], draft.parents[:count], draft.probs, target, accept_at, draw_at)
