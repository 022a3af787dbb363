"""What does the terminal show of a run?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from loadtest.speedup.measuring import PLAIN


def by_category(report: dict[str, Any]) -> list[dict[str, dict[str, Any]]]:
    """The rows of each category by method, the totals last."""
    rows = [*report["rows"], *report["totals"].values()]
    names = dict.fromkeys(row["category"] for row in rows)
    return [{row["method"]: row for row in rows if row["category"] == name} for name in names]


def table(report: dict[str, Any], methods: Sequence[str]) -> Table:
    """Speed-ups by category and method, with c, α and tokens per round."""
    drafting = [method for method in methods if method != PLAIN]
    made = Table("category", "off tok/s", *drafting, title="speed-up (95 % interval) · c · α · tokens per round")
    for of in by_category(report):
        cells = (cell(of[method]) for method in drafting)
        made.add_row(of[PLAIN]["category"], f"{of[PLAIN]['tokens_per_second']:.1f}", *cells)
    return made


def cell(row: dict[str, Any]) -> str:
    """A row in a few characters; what failed or differs is never left out."""
    figures = f"{row['draft_cost_ratio']:.2f} · {row['acceptance_rate']:.2f} · {row['tokens_per_round']:.2f}"
    return f"{speed(row)} · {figures}{troubles(row)}"


def speed(row: dict[str, Any]) -> str:
    """The speed-up and its interval, if there is one."""
    bounds = "" if row["speedup_low"] is None else f" ({row['speedup_low']:.2f}–{row['speedup_high']:.2f})"
    return f"{row['speedup']:.2f}x{bounds}"


def troubles(row: dict[str, Any]) -> str:
    """How many answers failed, and how many differ from those of `off`."""
    found = [f"{row[name]} {said}" for name, said in (("differing", "differ"), ("errors", "failed")) if row[name]]
    return f" ({', '.join(found)})" if found else ""
