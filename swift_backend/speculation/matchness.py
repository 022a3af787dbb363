"""Would drafts with this layer set have been right? Tried on text that the full model has computed already."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from swift_backend.model.shadow import logits_without
from swift_backend.runner import Runner

# Logits of so many rows at once: a vocabulary of 150,000 takes 0.6 MB a row.
MOST_ROWS = 256


@dataclass(frozen=True, slots=True)
class Trial:
    """What candidates would have drafted at some positions.

    matches: bool [candidates, positions], whether the draft's likeliest token is the full model's; confidence: float32
    of the same shape, the draft's probability of it.
    """

    matches: torch.Tensor
    confidence: torch.Tensor

    @property
    def matchness(self) -> torch.Tensor:
        """The share of positions that match, float32 [candidates]."""
        return self.matches.float().mean(dim=1)


def try_sets(runner: Runner, extent_start: int, tokens: Seq[int], positions: Seq[int], skips: Seq[int]) -> Trial:
    """Try the layer sets with these masks at positions of one sequence, whose tokens before them the cache holds.

    positions: at least one, in any order, of tokens that are known; a draft there would be of the token after it.
    The full model is asked again for its own likeliest tokens: what a request sampled says little of them, and a prompt
    nothing.
    """
    step = max(1, MOST_ROWS // (len(skips) + 1))
    parts = [_try(runner, extent_start, tokens, positions[i : i + step], skips) for i in range(0, len(positions), step)]
    return Trial(torch.cat([part.matches for part in parts], 1), torch.cat([part.confidence for part in parts], 1))


def _try(runner: Runner, extent_start: int, tokens: Seq[int], positions: Seq[int], skips: Seq[int]) -> Trial:
    known = [tokens[position] for position in positions]
    logits = logits_without(runner.shadow(extent_start, known, positions), [0, *skips])
    best, ids = logits.max(dim=-1)
    confidence = torch.exp(best - torch.logsumexp(logits, dim=-1))
    return Trial((ids[1:] == ids[0]).cpu(), confidence[1:].cpu())
