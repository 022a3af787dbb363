"""Which tokens may still be drawn? Temperature, then top-k, top-p and min-p, in transformers' order, for many rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from swift_backend.params import SamplingParams

# Sorting a vocabulary takes longer than the head itself; the filters seldom leave more than so many tokens.
CANDIDATES = 256
MORE_CANDIDATES = 4096
# Rows over the whole vocabulary are worked on in blocks that fit a core's cache; a GPU likes them large.
CPU_ELEMENTS = 2**16
GPU_ELEMENTS = 2**24


@dataclass(frozen=True, slots=True)
class Survivors:
    """What may be drawn in some rows.

    rows: which. scores: log probabilities up to a constant per row, float64 [len(rows), n]; the likeliest token is at 0
    and −inf is excluded. ids: the tokens they belong to, int64 [len(rows), n].
    """

    rows: list[int]
    scores: torch.Tensor
    ids: torch.Tensor


def is_filtered(params: SamplingParams) -> bool:
    """Whether there may be tokens that cannot be drawn."""
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def filter_logits(logits: torch.Tensor, params: Seq[SamplingParams]) -> Iterator[Survivors]:
    """The survivors of all rows of logits, float32 [rows, vocab], in groups; for temperatures > 0.

    Nothing overflows however low the temperature, and the likeliest token always survives. How a row is worked on
    depends on itself alone, so its survivors do too.
    """
    vocabulary = logits.shape[-1]
    filtered = [row for row, one in enumerate(params) if _leaves_few(one)]
    wide = set(range(len(params)))
    if filtered and vocabulary > CANDIDATES:
        few = _among_candidates(logits, filtered, params)
        wide -= set(few.rows)
        if few.rows:
            yield few
    for rows in _blocks(logits, sorted(wide)):
        scores = _among_all(logits[rows], [params[row] for row in rows])
        yield Survivors(rows, scores, torch.arange(vocabulary, device=logits.device).expand_as(scores))


def _among_candidates(logits: torch.Tensor, rows: list[int], params: Seq[SamplingParams]) -> Survivors:
    """The survivors of those rows where all of them are among the likeliest CANDIDATES, without doubt."""
    ours = [params[row] for row in rows]
    best, ids = torch.topk(logits[rows], CANDIDATES)
    temperatures = _column(logits, [one.temperature for one in ours])
    scores = (best.double() - best[:, :1]) / temperatures
    place = torch.arange(CANDIDATES, device=logits.device)
    top_k = torch.tensor([[one.top_k if one.top_k > 0 else CANDIDATES] for one in ours], device=logits.device)
    kept = best >= best.gather(1, top_k - 1)  # what shares the k-th place stays
    scores.masked_fill_(~kept, -torch.inf)
    if any(one.top_p < 1 for one in ours):
        probs = torch.exp(scores - _log_mass(logits, rows, best[:, 0], scores, ours))
        limits = [one.top_p if one.top_p < 1 else math.inf for one in ours]
        kept &= torch.cumsum(probs, dim=-1) - probs < _column(logits, limits)
    kept &= scores >= _least_scores(logits, ours)
    num_kept = kept.sum(dim=-1, keepdim=True)
    next_one = best.gather(1, num_kept.clamp_max(CANDIDATES - 1))
    # Not when a token outside might belong to them, nor when ties are cut, whose order topk leaves open.
    certain = (num_kept < CANDIDATES) & (best.gather(1, num_kept - 1) > next_one)
    sure = [i for i, flag in enumerate(certain.squeeze(1).tolist()) if flag]
    width = int(num_kept[sure].max()) if sure else 0
    scores = scores.masked_fill(place >= num_kept, -torch.inf)
    return Survivors([rows[i] for i in sure], scores[sure, :width], ids[sure, :width])


def _leaves_few(params: SamplingParams) -> bool:
    """Whether looking at the CANDIDATES first is worth it."""
    return params.top_k <= CANDIDATES and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)


def _log_mass(
    logits: torch.Tensor, rows: list[int], best: torch.Tensor, scores: torch.Tensor, params: Seq[SamplingParams]
) -> torch.Tensor:
    """Logarithm of the sum of exp(score) over what top-k left in each row, float64 [len(rows), 1]."""
    mass = torch.logsumexp(scores, dim=-1, keepdim=True)
    for i, (row, one) in enumerate(zip(rows, params, strict=True)):
        if one.top_p < 1 and one.top_k <= 0:
            mass[i] = torch.logsumexp((logits[row].double() - best[i]) / one.temperature, dim=-1)
    return mass


def _among_all(logits: torch.Tensor, params: Seq[SamplingParams]) -> torch.Tensor:
    """Scores of whole rows, float64 [rows, vocab]."""
    scores = logits.double() - logits.amax(dim=-1, keepdim=True)
    scores /= _column(logits, [one.temperature for one in params])
    top_k = [row for row, one in enumerate(params) if 0 < one.top_k < logits.shape[-1]]
    if top_k:
        scores[top_k] = _top_k(scores[top_k], [params[row].top_k for row in top_k])
    top_p = [row for row, one in enumerate(params) if one.top_p < 1]
    if top_p:
        scores[top_p] = _top_p(scores[top_p], _column(logits, [params[row].top_p for row in top_p]))
    if any(one.min_p > 0 for one in params):
        scores.masked_fill_(scores < _least_scores(logits, params), -torch.inf)
    return scores


def _least_scores(logits: torch.Tensor, params: Seq[SamplingParams]) -> torch.Tensor:
    """What min_p asks of a score, where the likeliest token's is 0, float64 [rows, 1]."""
    return _column(logits, [math.log(one.min_p) if one.min_p > 0 else -math.inf for one in params])


def _top_k(scores: torch.Tensor, top_k: Seq[int]) -> torch.Tensor:
    """Keep what is as likely as the k-th token; several may share its place."""
    best = torch.topk(scores, max(top_k)).values
    last = torch.tensor([[k - 1] for k in top_k], device=scores.device)
    return scores.masked_fill(scores < best.gather(1, last), -torch.inf)


def _top_p(scores: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep the smallest set of likeliest tokens whose mass reaches top_p, float64 [rows, 1]; ties by lowest id."""
    probs = torch.softmax(scores, dim=-1)
    best = torch.topk(probs, min(MORE_CANDIDATES, probs.shape[-1])).values
    short = (best.sum(dim=-1) < top_p.squeeze(1)).nonzero().squeeze(1)
    outside = _outside(probs, best, top_p)
    if len(short):
        everything = torch.sort(probs[short], dim=-1, descending=True).values
        outside[short] = _outside(probs[short], everything, top_p[short])
    return scores.masked_fill_(outside, -torch.inf)


def _outside(probs: torch.Tensor, best: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """What top_p excludes, bool like probs, where best are the largest of them in order."""
    num_kept = (torch.cumsum(best, dim=-1) - best < top_p).sum(dim=-1, keepdim=True)
    last = best.gather(1, num_kept - 1)
    tied = probs == last
    num_tied = num_kept - (probs > last).sum(dim=-1, keepdim=True)
    tied &= torch.cumsum(tied, dim=-1) <= num_tied
    return ~tied & (probs <= last)


def _blocks(logits: torch.Tensor, rows: list[int]) -> Iterator[list[int]]:
    elements = CPU_ELEMENTS if logits.device.type == "cpu" else GPU_ELEMENTS
    step = max(1, elements // logits.shape[-1])
    return (rows[start : start + step] for start in range(0, len(rows), step))


def _column(like: torch.Tensor, values: Seq[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device).unsqueeze(1)
