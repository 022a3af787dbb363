"""Do drawn tokens follow a distribution?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy import stats


def p_value(tokens: Sequence[int], expected: torch.Tensor, least: float = 5.0) -> float:
    """Chi-square p-value of token counts against probabilities [vocab]; 0 when an impossible token was drawn.

    Cells with fewer than `least` expected counts are pooled, as the test's approximation wants.
    """
    counts = torch.bincount(torch.tensor(tokens), minlength=expected.shape[0]).double()
    hoped = expected.double() * len(tokens)
    if float(counts[hoped == 0].sum()) > 0:
        return 0.0
    small = hoped < least
    observed = torch.cat((counts[~small], counts[small].sum()[None]))
    wanted = torch.cat((hoped[~small], hoped[small].sum()[None]))
    filled = wanted > 0
    if int(filled.sum()) < 2:
        return 1.0
    return float(stats.chisquare(observed[filled], wanted[filled]).pvalue)
