"""Does the server count what its users saw? Its metrics before and after, beside the users' figures."""

from __future__ import annotations

import time
from typing import Any

import httpx

from loadtest.figures import Sample, difference, read_metrics, total

# The server's figures come a moment after its last answer.
SETTLE_SECONDS = 5.0
# By which the mean time of a request may differ: what is spent on the way, which of a short request is a large share.
LATENCY_TOLERANCE, LATENCY_SECONDS = 0.1, 0.02


def read(url: str | None) -> dict[Sample, float] | None:
    """None where there is no such page."""
    if url is None:
        return None
    try:
        return read_metrics(url)
    except (httpx.HTTPError, httpx.InvalidURL):
        return None


def read_at_rest(url: str | None) -> dict[Sample, float] | None:
    """Once no request runs or waits, and no figure changes: gauges are written before histograms."""
    until = time.monotonic() + SETTLE_SECONDS
    latest = None
    while (metrics := read(url)) is not None:
        busy = total(metrics, "swift_running_requests") + total(metrics, "swift_waiting_requests")
        if (not busy and metrics == latest) or time.monotonic() > until:
            return metrics
        latest = metrics
        time.sleep(0.1)
    return None


def compare(
    before: dict[Sample, float] | None, after: dict[Sample, float] | None, seen: dict[str, Any]
) -> dict[str, Any] | None:
    """The server's part of a level, and whether it agrees with what users saw; None without metrics.

    Tokens must be the same to the last one; the mean seconds of a request within LATENCY_TOLERANCE, or LATENCY_SECONDS.
    Other traffic on the server makes both differ.
    """
    if before is None or after is None:
        return None
    added = difference(after, before)
    requests = total(added, "swift_request_seconds_count")
    rounds = total(added, "swift_rounds_total")
    mean = total(added, "swift_request_seconds_sum") / requests if requests else 0.0
    found = {
        "output_tokens": int(total(added, "swift_generated_tokens_total")),
        "requests": int(requests),
        "mean_end_to_end": mean,
        "draft_tokens": int(total(added, "swift_draft_tokens_total")),
        "accepted_draft_tokens": int(total(added, "swift_accepted_draft_tokens_total")),
        "drafted_per_round": total(added, "swift_draft_tokens_total") / rounds if rounds else 0.0,
        "rounds_without_draft": total(added, "swift_rounds_without_draft_total") / rounds if rounds else 0.0,
    }
    return {**found, "differences": differences(found, seen)}


def differences(server: dict[str, Any], seen: dict[str, Any]) -> list[str]:
    """A sentence for each figure in which server and users do not agree."""
    found = []
    for name in ("output_tokens", "draft_tokens", "accepted_draft_tokens"):
        if server[name] != seen[name]:
            found.append(f"{name}: the server counts {server[name]}, users saw {seen[name]}")
    ours, theirs = seen["mean_end_to_end"], server["mean_end_to_end"]
    if abs(ours - theirs) > max(LATENCY_TOLERANCE * theirs, LATENCY_SECONDS):
        found.append(f"mean seconds of a request: {theirs:.3f} on the server, {ours:.3f} for users")
    return found
