"""From logits to tokens: the one pipeline that draft, verification and plain decoding share, and named randomness.

The token at a position is argmax(log p + g), with Gumbel noise g that depends on the request's seed and the position
only. So what is drawn does not depend on batch mates, draft length or on how many tokens a pass verifies.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from swift_backend.params import SamplingParams

MASK64 = 2**64 - 1
TOP_P_CANDIDATES = 256


class Purpose(enum.IntEnum):
    """What a random number is for; different purposes at one position are independent."""

    TOKEN = 1
    DRAFT = 2
    ACCEPT = 3
    RECOVER = 4


@dataclass(frozen=True, slots=True)
class Draw:
    """How the token of one row is drawn: by whose parameters, with which noise.

    position: absolute position, in the sequence, of the token to be drawn.
    """

    params: SamplingParams
    seed: int
    position: int
    purpose: Purpose = Purpose.TOKEN

    @property
    def greedy(self) -> bool:
        return self.params.temperature == 0


def uniform(draw: Draw, ids: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in (0, 1), float64 [n], named by (seed, position, purpose, id) for ids int64 [n].

    splitmix64's finaliser (Steele et al., 2014) over a key per draw, in int64 arithmetic, so every device agrees.
    """
    key = _mix(_mix(_mix(draw.seed) ^ draw.position) ^ draw.purpose)
    x = ids * _signed(0x9E3779B97F4A7C15) + _signed(key)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    x = x ^ _shift(x, 31)
    return (_shift(x, 12).double() + 0.5) * 2.0**-52


def gumbel(draw: Draw, ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float64 [n], for token ids int64 [n]."""
    return -torch.log(-torch.log(uniform(draw, ids)))


def filter_logits(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Temperature, then top-k, top-p and min-p, in transformers' order; float32 [vocab] → float64, excluded −inf.

    Only for temperature > 0. The likeliest token is at 0, the others below, so nothing overflows however low the
    temperature; it always survives.
    """
    scores = (logits - logits.max()).double() / params.temperature
    if 0 < params.top_k < scores.shape[0]:
        kth = torch.topk(scores, params.top_k).values[-1]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if params.top_p < 1:
        scores = _top_p(scores, params.top_p)
    if params.min_p > 0:
        log_probs = torch.log_softmax(scores, dim=-1)
        limit = log_probs.max() + math.log(params.min_p)
        scores = scores.masked_fill(log_probs < limit, -torch.inf)
    return scores


def probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The distribution that a row is drawn from, float64 [vocab]; one-hot for temperature 0."""
    if params.temperature == 0:
        one_hot = torch.zeros(logits.shape[0], dtype=torch.float64, device=logits.device)
        one_hot[logits.argmax()] = 1.0
        return one_hot
    return torch.softmax(filter_logits(logits, params), dim=-1)


def draw_tokens(logits: torch.Tensor, draws: Seq[Draw]) -> list[int]:
    """The token of each row of logits, float32 [rows, vocab]: argmax(log p + g), greedy rows without g.

    Ties go to the lowest id.
    """
    if all(draw.greedy for draw in draws):
        return [int(token) for token in logits.argmax(dim=-1).tolist()]
    return [_draw_token(row, draw) for row, draw in zip(logits, draws, strict=True)]


def draw_from(probs: torch.Tensor, draw: Draw) -> int:
    """A token from probabilities, float64 [vocab], that need not sum to one, with the draw's noise."""
    ids = probs.nonzero().squeeze(-1)
    return int(ids[(probs[ids].log() + gumbel(draw, ids)).argmax()])


def _draw_token(logits: torch.Tensor, draw: Draw) -> int:
    if draw.greedy:
        return int(logits.argmax())
    scores = filter_logits(logits, draw.params)
    ids = (scores > -torch.inf).nonzero().squeeze(-1)
    return int(ids[(scores[ids] + gumbel(draw, ids)).argmax()])


def _top_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of likeliest tokens whose mass reaches top_p.

    Sorting a whole vocabulary takes longer than the head itself, so a few candidates are tried first.
    """
    probs = torch.softmax(scores, dim=-1)
    for count in (min(TOP_P_CANDIDATES, probs.shape[0]), probs.shape[0]):
        top, ids = torch.topk(probs, count)
        before = torch.cumsum(top, dim=-1) - top
        if before[-1] + top[-1] >= top_p or count == probs.shape[0]:
            break
    mask = torch.ones_like(scores, dtype=torch.bool)
    mask[ids[before < top_p]] = False
    return scores.masked_fill(mask, -torch.inf)


def _mix(x: int) -> int:
    """splitmix64's finaliser on a Python integer."""
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift; torch's own keeps the sign."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
