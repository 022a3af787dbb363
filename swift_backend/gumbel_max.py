"""Which tokens have the highest log p + g, where every token may be drawn? Found without the noise of most of them.

A token far behind the likeliest one needs noise that few have. Whether it has can be told from the bits of its random
number, so logarithms are taken for a few hundred tokens of a vocabulary of 50,000 and more. The answer is that of
taking them all.
"""

from __future__ import annotations

import math

import torch

from swift_backend.noise import bits, gumbel_of

# Noise above this is rare: one token of 3,000 has it.
RARE = 8.0
RARE_BITS = math.floor(math.exp(-math.exp(-RARE)) * 2.0**52) - 1
# So many of the likeliest tokens are tried first: the best of all is no worse.
FIRST = 8
# Rounding must not exclude a token: logits are compared as they are, in float32, and scores were divided.
CARE, SHARE_OF_CARE = 1e-3, 1e-6


def best_of_all(logits: torch.Tensor, temperature: float, key: int, count: int) -> tuple[list[int], list[float]]:
    """The tokens of the highest (logit − highest logit) / temperature + g, best first, and these scores.

    logits: float32 [vocab], finite or −inf, with one finite at least; count: at most FIRST. Of equal scores the first
    is of the lowest token.
    """
    vocabulary = logits.shape[0]
    highest, likeliest = torch.topk(logits, min(FIRST, vocabulary))
    drawn = bits(torch.tensor(key, device=logits.device), torch.arange(vocabulary, device=logits.device))
    tried = _scores(logits, highest[0], temperature, drawn, likeliest)
    to_beat = float(tried.topk(min(count, len(tried))).values[-1])
    if to_beat > -math.inf:
        least = float(highest[0]) + (to_beat - RARE) * temperature
        least -= CARE * (1 + temperature) + SHARE_OF_CARE * (abs(float(highest[0])) + abs(least))
        likeliest = ((logits >= least) | (drawn >= RARE_BITS)).nonzero().squeeze(1)
    else:  # fewer can be drawn than are asked for
        likeliest = likeliest.sort().values
    tried = _scores(logits, highest[0], temperature, drawn, likeliest)
    order = [int(tried.argmax())]
    if count > 1:
        rest = tried.index_fill(0, torch.tensor(order, device=tried.device), -math.inf)
        order += rest.topk(min(count, len(tried)) - 1).indices.tolist()
    return likeliest[order].tolist(), tried[order].tolist()


def _scores(
    logits: torch.Tensor, highest: torch.Tensor, temperature: float, drawn: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Of these tokens, float64."""
    return (logits[ids].double() - highest) / temperature + gumbel_of(drawn[ids])
