"""What do many measurements say together? Percentiles, ratios, and how sure they are; pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

# Of the bootstrap: resamples, and the share of them that the interval holds.
RESAMPLES = 2000
CONFIDENCE = 0.95
SHARES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Timed:
    """Something that was measured twice: tokens and seconds of it, and of the baseline on the same."""

    tokens: int
    seconds: float
    base_tokens: int
    base_seconds: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which so much of them lies, interpolated between the two next to it; ValueError of none."""
    if not values:
        raise ValueError("no values, no percentile")
    return float(np.quantile(np.asarray(values, dtype=np.float64), share))


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """The 50th, 90th and 99th as p50, p90 and p99; None of no values."""
    return {f"p{round(100 * share)}": percentile(values, share) if values else None for share in SHARES}


def speedup(measured: Sequence[Timed]) -> float:
    """Σ tokens / Σ seconds over the same of the baseline; 0 where either has no tokens or no time."""
    tokens, base_tokens = sum(one.tokens for one in measured), sum(one.base_tokens for one in measured)
    seconds, base_seconds = sum(one.seconds for one in measured), sum(one.base_seconds for one in measured)
    if not (tokens and base_tokens and seconds and base_seconds):
        return 0.0
    return (tokens / seconds) / (base_tokens / base_seconds)


def median_speedup(measured: Sequence[Timed]) -> float:
    """The median over prompts of their speed-ups; 0 of none."""
    ratios = [speedup([one]) for one in measured]
    return percentile(ratios, 0.5) if ratios else 0.0


def interval(
    measured: Sequence[Timed], statistic: Callable[[Sequence[Timed]], float] = speedup, seed: int = 0
) -> tuple[float, float] | None:
    """The bootstrap's percentile interval (Efron, 1979) of a statistic, over prompts; None of fewer than two.

    The same for the same measurements and seed.
    """
    if len(measured) < 2:
        return None
    chosen = np.random.default_rng(seed).integers(len(measured), size=(RESAMPLES, len(measured)))
    found = [statistic([measured[i] for i in some]) for some in chosen]
    outside = (1 - CONFIDENCE) / 2
    return percentile(found, outside), percentile(found, 1 - outside)
