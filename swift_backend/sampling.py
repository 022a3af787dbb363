"""From logits to tokens: the one pipeline that draft, verification and plain decoding share.

logits → processors.process → filters.filter_logits → log p. The token at a position is argmax(log p + g), with Gumbel
noise g that depends on the request's seed and the position only. So what is drawn does not depend on batch mates,
draft length or on how many tokens a pass verifies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from swift_backend.filters import filter_logits, is_filtered
from swift_backend.gumbel_max import best_of_all
from swift_backend.noise import Purpose, gumbel, noise_key, uniform
from swift_backend.params import SamplingParams
from swift_backend.processors import Processors, process
from swift_backend.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Draw:
    """How the token of one row is drawn: by whose parameters, with which noise.

    position: absolute position, in the sequence, of the token to be drawn. drafted: the tokens between the committed
    ones and it.
    """

    params: SamplingParams
    seed: int
    position: int
    purpose: Purpose = Purpose.TOKEN
    processors: Processors | None = None
    drafted: tuple[int, ...] = ()

    @classmethod
    def after(cls, sequence: Sequence, drafted: Seq[int], purpose: Purpose = Purpose.TOKEN) -> Draw:
        """The draw of the token that follows the sequence's and the drafted ones."""
        position = len(sequence.tokens) + len(drafted)
        return cls(sequence.params, sequence.seed, position, purpose, sequence.processors, tuple(drafted))

    @property
    def greedy(self) -> bool:
        return self.params.temperature == 0

    @property
    def key(self) -> int:
        return noise_key(self.seed, self.position, self.purpose)


def mend(logits: torch.Tensor) -> tuple[torch.Tensor, list[bool]]:
    """Which rows of logits, float32 [rows, vocab], can be drawn from; the others (NaN, ∞, all −∞) are zeroed."""
    usable = torch.isfinite(logits.amax(dim=-1))
    flags = usable.tolist()
    return (logits if all(flags) else logits.masked_fill(~usable.unsqueeze(1), 0.0)), flags


def draw_tokens(logits: torch.Tensor, draws: Seq[Draw]) -> list[int]:
    """The token of each row of logits, float32 [rows, vocab]: argmax(log p + g), greedy rows without g.

    Ties go to the lowest id. Noise is made only for what can still be drawn.
    """
    return [best for [best] in draw_best(logits, draws, 1)]


def draw_best(logits: torch.Tensor, draws: Seq[Draw], count: int) -> list[tuple[int, ...]]:
    """The tokens of the highest log p + g of each row, best first: `count`, or as many as can be drawn.

    The first is that of draw_tokens; who the others are may depend on the kernel where they tie.
    """
    logits = _processed(logits, draws)
    tokens: list[tuple[int, ...]] = [()] * len(draws)
    greedy = [row for row, draw in enumerate(draws) if draw.greedy]
    if greedy:
        rows = logits if len(greedy) == len(draws) else logits[greedy]
        _put(tokens, greedy, rows, _best(rows, min(count, logits.shape[1])))
    sampled = [row for row, draw in enumerate(draws) if not draw.greedy]
    if logits.device.type == "cpu":  # elsewhere one row after another would wait for each
        for row in [row for row in sampled if not is_filtered(draws[row].params)]:
            one = draws[row]
            found = best_of_all(logits[row], one.params.temperature, one.key, min(count, logits.shape[1]))
            tokens[row] = tuple(token for token, score in zip(*found, strict=True) if score > -math.inf)
        sampled = [row for row in sampled if is_filtered(draws[row].params)]
    if sampled:
        for group in filter_logits(logits[sampled], [draws[row].params for row in sampled]):
            rows_of = [sampled[row] for row in group.rows]
            scores = group.scores + gumbel(_keys([draws[row] for row in rows_of], logits).unsqueeze(1), group.ids)
            _put(tokens, rows_of, scores, _best(scores, min(count, scores.shape[1])), group.ids)
    return tokens


def _best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the highest scores, int64 [rows, count]; of equal ones the first is the lowest."""
    first = scores.argmax(dim=-1, keepdim=True)
    if count == 1:
        return first
    others = scores.scatter(1, first, -torch.inf).topk(count - 1, dim=-1).indices
    return torch.cat((first, others), dim=-1)


def probabilities(logits: torch.Tensor, draws: Seq[Draw]) -> torch.Tensor:
    """The distributions that rows of logits, float32 [rows, vocab], are drawn from, float64; greedy ones one-hot."""
    logits = _processed(logits, draws)
    probs = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    probs.scatter_(1, logits.argmax(dim=-1, keepdim=True), 1.0)
    sampled = [row for row, draw in enumerate(draws) if not draw.greedy]
    if sampled:
        for group in filter_logits(logits[sampled], [draws[row].params for row in sampled]):
            rows = torch.tensor([[sampled[row]] for row in group.rows], device=logits.device)
            probs[rows] = 0.0
            probs[rows, group.ids] = torch.softmax(group.scores, dim=-1)
    return probs


def draw_from(probs: torch.Tensor, draw: Draw) -> int:
    """A token from probabilities, float64 [vocab], that need not sum to one, with the draw's noise."""
    ids = probs.nonzero().squeeze(-1)
    return int(ids[(probs[ids].log() + gumbel(_keys([draw], ids), ids)).argmax()])


def draw_uniform(draw: Draw, index: int = 0) -> float:
    """A number in (0, 1), by the draw's name and an index."""
    ids = torch.tensor([index], dtype=torch.int64)
    return float(uniform(_keys([draw], ids), ids))


def _put(
    tokens: list[tuple[int, ...]],
    rows: Seq[int],
    scores: torch.Tensor,
    best: torch.Tensor,
    ids: torch.Tensor | None = None,
) -> None:
    """Write down what stands at the best places of each row; those after the first only if they can be drawn."""
    places = scores.gather(1, best).tolist() if best.shape[1] > 1 else [[0.0]] * len(rows)
    found = (best if ids is None else ids.gather(1, best)).tolist()
    for row, some, of in zip(rows, found, places, strict=True):
        tokens[row] = tuple(token for i, token in enumerate(some) if i == 0 or of[i] > -math.inf)


def _processed(logits: torch.Tensor, draws: Seq[Draw]) -> torch.Tensor:
    if any(draw.processors is not None for draw in draws):
        logits = logits.clone()
        process(logits, [(draw.processors, draw.drafted) for draw in draws])
    return logits


def _keys(draws: Seq[Draw], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([draw.key for draw in draws], dtype=torch.int64, device=like.device)
