"""What does the terminal show of a sweep?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Column, Table

HEADS = (
    "users", "requests", "failed", "TTFT, ms", "per token, ms", "whole, s", "tokens/s", "accepted", "drafted",
    "agrees",
)  # fmt: skip
ABOUT = "latencies p50, p90, p99 · drafted a round, and whether figures agree, by the server"


def table(levels: Sequence[dict[str, Any]]) -> Table:
    """One line for each level."""
    heads = [Column(head, min_width=max(map(len, head.split()))) for head in HEADS]
    made = Table(*heads, title=ABOUT, padding=(0, 0), show_lines=True)
    for level in levels:
        made.add_row(*(cell.replace("/", "\n") for cell in cells(level)))  # one below the other: 80 columns are few
    return made


def cells(level: dict[str, Any]) -> list[str]:
    """A level's line."""
    server = level["server"]
    return [
        f"{level['users']}{'' if level['complete'] else ' (cut short)'}",
        str(level["requests"]),
        str(level["failures"]),
        shares(level["ttft"], 1000, 0),
        shares(level["inter_token"], 1000, 1),
        shares(level["end_to_end"], 1, 2),
        f"{level['tokens_per_second']:.1f}",
        f"{level['acceptance_rate']:.0%}",
        "–" if server is None else f"{server['drafted_per_round']:.2f}",
        "no metrics" if server is None else ("no" if server["differences"] else "yes"),
    ]


def shares(percentiles: dict[str, float | None], factor: float, digits: int) -> str:
    """p50 / p90 / p99."""
    return "/".join("–" if value is None else f"{factor * value:.{digits}f}" for value in percentiles.values())
