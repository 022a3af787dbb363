"""How likely did the full model find the tokens of an answer, and which others did it like?"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from swift_backend.sequence import TokenLogprob


def token_logprobs(logits: torch.Tensor, token_ids: Seq[int], num_top: int) -> tuple[TokenLogprob, ...]:
    """For each row of the model's logits, float32 [len(token_ids), vocab], its token and the num_top likeliest.

    Computed before penalties, bias and temperature, like vLLM's; ties go to the lowest id.
    """
    if not token_ids:
        return ()
    rows = torch.log_softmax(logits.double(), dim=-1)
    chosen = rows.gather(1, torch.tensor(token_ids, device=logits.device).unsqueeze(1)).squeeze(1).tolist()
    tops = [_top(row, num_top) for row in rows] if num_top else [()] * len(token_ids)
    return tuple(map(TokenLogprob, token_ids, chosen, tops))


def _top(row: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens of a row; all that tie with the last are looked at, since topk takes any of them."""
    last = torch.topk(row, min(count, row.shape[0])).values[-1]
    ids = (row >= last).nonzero().squeeze(1).tolist()
    pairs = zip(ids, row[ids].tolist(), strict=True)
    return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:count])
