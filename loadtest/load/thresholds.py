"""Is a result good enough? Limits that a user sets, and which of them a run breaks."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Thresholds:
    """None is no limit. Seconds, but for failures, which is a share of the requests, and tokens_per_second."""

    failures: float | None = 0.0
    ttft_p90: float | None = None
    inter_token_p90: float | None = None
    end_to_end_p90: float | None = None
    tokens_per_second: float | None = None

    def broken(self, summary: Mapping[str, Any]) -> list[str]:
        """A sentence for each limit that a run's summary breaks; a run without requests breaks them all."""
        if not summary["requests"]:
            return ["no requests were made"]
        found = []
        share = summary["failures"] / summary["requests"]
        if self.failures is not None and share > self.failures:
            found.append(f"{share:.1%} of the requests failed, allowed are {self.failures:.1%}")
        for name in ("ttft", "inter_token", "end_to_end"):
            limit, value = getattr(self, f"{name}_p90"), summary[name]["p90"]
            if limit is not None and (value is None or value > limit):
                shown = "unknown" if value is None else f"{value:.3f} s"
                found.append(f"{name} p90 is {shown}, allowed are {limit:g} s")
        speed = summary["tokens_per_second"]
        if self.tokens_per_second is not None and speed < self.tokens_per_second:
            found.append(f"{speed:.1f} tokens/s, wanted are {self.tokens_per_second:g}")
        return found


OPTIONS = {
    "failures": ("--max-failures", "share of requests that may fail (default: 0)"),
    "ttft_p90": ("--max-ttft-p90", "seconds to the first token, 90th percentile"),
    "inter_token_p90": ("--max-inter-token-p90", "seconds per token, 90th percentile"),
    "end_to_end_p90": ("--max-end-to-end-p90", "seconds of a whole request, 90th percentile"),
    "tokens_per_second": ("--min-tokens-per-second", "of all users together"),
}


def add_options(parser: Any) -> None:
    """To argparse's or Locust's parser."""
    for name, (flag, about) in OPTIONS.items():
        parser.add_argument(flag, type=float, default=getattr(Thresholds(), name), help=about)


def thresholds_of(arguments: argparse.Namespace) -> Thresholds:
    """From parsed options."""
    names = {name: flag[2:].replace("-", "_") for name, (flag, _) in OPTIONS.items()}
    return Thresholds(**{name: getattr(arguments, flag) for name, flag in names.items()})
