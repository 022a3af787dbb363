"""What do many requests come to? Percentiles, tokens per second, failures; pure functions of what users saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from loadtest.load.outcome import WITHDRAWN, Outcome
from loadtest.statistics import percentiles


def summary(outcomes: Collection[Outcome], duration: float) -> dict[str, Any]:
    """Latencies in seconds, of whole answers; output_tokens: of all requests, whole or not. What was withdrawn because
    the test was ended is among the errors, but no failure.

    inter_token: the time since the chunk before, shared by the tokens of a chunk; chunk_gap: the whole of it, once per
    chunk, which is what a reader waits. tokens_per_second: those that came within `duration` seconds of the first
    request, whoever asked for them; what came when no new requests did would make the server look idle.
    """
    whole = [one for one in outcomes if not one.error]
    begun = min((one.started for one in outcomes), default=0.0)
    gaps = [gap for one in whole for gap in one.gaps]
    drafted = sum(one.draft_tokens for one in outcomes)
    return {
        "requests": len(outcomes),
        "failures": sum(bool(one.error) and one.error != WITHDRAWN for one in outcomes),
        "errors": dict(Counter(one.error for one in outcomes if one.error)),
        "finish_reasons": dict(Counter(one.finish_reason for one in whole)),
        "ttft": percentiles([one.first_token for one in whole if one.first_token is not None]),
        "inter_token": percentiles([seconds / tokens for seconds, tokens in gaps for _ in range(tokens)]),
        "chunk_gap": percentiles([seconds for seconds, _ in gaps]),
        "end_to_end": percentiles([one.total for one in whole]),
        "mean_end_to_end": _share(sum(one.total for one in whole), len(whole)),
        "prompt_tokens": sum(one.prompt_tokens for one in outcomes),
        "output_tokens": sum(one.tokens for one in outcomes),
        "tokens_per_second": _share(arrived(outcomes, begun, duration), duration),
        "draft_tokens": drafted,
        "accepted_draft_tokens": sum(one.accepted_draft_tokens for one in outcomes),
        "acceptance_rate": _share(sum(one.accepted_draft_tokens for one in outcomes), drafted),
    }


def arrived(outcomes: Collection[Outcome], begun: float, duration: float) -> int:
    """Tokens that came to any user within so many seconds."""
    chunks = ((one.started - begun + at, tokens) for one in outcomes for at, tokens in one.arrivals)
    return sum(tokens for at, tokens in chunks if at <= duration)


def lasted(outcomes: Collection[Outcome]) -> float:
    """Seconds from the first request to the last token."""
    begun = min((one.started for one in outcomes), default=0.0)
    return max((one.started - begun + one.arrivals[-1][0] for one in outcomes if one.arrivals), default=0.0)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
