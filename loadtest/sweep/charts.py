"""How does a sweep look? Its page, alone or beside another sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plotly.graph_objects import Figure, Scatter

from loadtest.report.page import Grid, Section, write_page
from loadtest.sweep.table import HEADS, cells

LATENCIES = {
    "ttft": "Seconds to the first token",
    "inter_token": "Seconds per token",
    "end_to_end": "Seconds of a request",
}
DASHES = ("solid", "dash")


def write_report(path: Path, report: dict[str, Any], other: dict[str, Any] | None = None) -> None:
    """One HTML file; other: a sweep to compare with."""
    runs = [("this run" if other else "", report), *([("compared", other)] if other else [])]
    sections = [_overview(report), _latencies(runs), _speed(runs), _drafts(runs)]
    if other:
        sections.append(_compared(report, other))
    sections.append(_troubles(report))
    facts = {name: str(report[name]) for name in ("url", "workload", "shape", "duration", "command")}
    facts |= {name: str(value) for name, value in report["machine"].items()}
    if other:
        facts["compared with"] = f"{other['command']} on {other['machine'].get('cpu', '?')}"
    write_page(path, f"Load on {report['url']}", facts, sections)


def _overview(report: dict[str, Any]) -> Section:
    text = (
        "Each user has one request at a time. TTFT is the time to the first token; per token, the time since the chunk "
        "before shared by the chunk's tokens; tokens/s what came to all users together while new requests were made."
    )
    return Section("Levels", text, [Grid(HEADS, [cells(level) for level in report["levels"]])])


def _latencies(runs: Sequence[tuple[str, dict[str, Any]]]) -> Section:
    figures = []
    for key, title in LATENCIES.items():
        figure = _figure(title, "seconds")
        for dash, (name, run) in zip(DASHES, runs, strict=False):
            for share in ("p50", "p90", "p99"):
                values = [level[key][share] for level in run["levels"]]
                figure.add_trace(_line(run, values, f"{share} {name}".strip(), dash))
        figures.append(figure)
    return Section("Latency", "What users wait for, by how many there are.", figures=figures)


def _speed(runs: Sequence[tuple[str, dict[str, Any]]]) -> Section:
    figure = _figure("Tokens per second, all users together", "tokens/s")
    for dash, (name, run) in zip(DASHES, runs, strict=False):
        values = [level["tokens_per_second"] for level in run["levels"]]
        figure.add_trace(_line(run, values, name or "tokens/s", dash))
    return Section("Throughput", figures=[figure])


def _drafts(runs: Sequence[tuple[str, dict[str, Any]]]) -> Section:
    accepted, drafted = _figure("Share of drafted tokens that were accepted", ""), _figure("Drafted tokens a round", "")
    for dash, (name, run) in zip(DASHES, runs, strict=False):
        levels = run["levels"]
        accepted.add_trace(_line(run, [level["acceptance_rate"] for level in levels], name or "acceptance", dash))
        lengths = [level["server"] and level["server"]["drafted_per_round"] for level in levels]
        drafted.add_trace(_line(run, lengths, name or "drafted a round", dash))
    text = (
        "Acceptance alone flatters: a server that seldom drafts, and only what is sure, has a high one. So it stands "
        "beside how much is drafted in a round, by the server's own count."
    )
    return Section("Speculation", text, figures=[accepted, drafted])


def _compared(report: dict[str, Any], other: dict[str, Any]) -> Section:
    theirs = {level["users"]: level for level in other["levels"]}
    rows = []
    for level in report["levels"]:
        if (base := theirs.get(level["users"])) is not None:
            pairs = [(level["tokens_per_second"], base["tokens_per_second"])]
            pairs += [(level[key][share], base[key][share]) for key in LATENCIES for share in ("p50", "p90")]
            rows.append([str(level["users"]), *(f"{a / b:.2f}" if a and b else "–" for a, b in pairs)])
    heads = ["users", "tokens/s", *(f"{key} {share}" for key in LATENCIES for share in ("p50", "p90"))]
    return Section("This run over the other", "1 is no difference; latencies below 1 are shorter.", [Grid(heads, rows)])


def _troubles(report: dict[str, Any]) -> Section:
    rows = [
        [str(level["users"]), said, str(count)]
        for level in report["levels"]
        for said, count in (
            *level["errors"].items(),
            *((one, "") for one in (level["server"] or {}).get("differences", ())),
            *((one, "") for one in level["broken"]),
        )
    ]
    text = "" if rows else "No request failed, no threshold is broken, and the server counts what users saw."
    return Section("Failures and differences", text, [Grid(["users", "what", "times"], rows)] if rows else [])


def _figure(title: str, unit: str) -> Figure:
    figure = Figure()
    figure.update_layout(title=title, xaxis_title="users", yaxis_title=unit, yaxis_rangemode="tozero")
    return figure


def _line(run: dict[str, Any], values: Sequence[float | None], name: str, dash: str) -> Scatter:
    users = [level["users"] for level in run["levels"]]
    return Scatter(x=users, y=values, name=name, mode="lines+markers", line={"dash": dash})
