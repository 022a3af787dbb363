"""How does a run look? Its page: speed-ups by task, the c–α plane, a stream over time, memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plotly.graph_objects import Bar, Figure, Scatter

from loadtest.report.page import Grid, Section, write_page
from loadtest.speedup.measuring import PLAIN
from loadtest.speedup.table import by_category, cell, speed, troubles

MIB = 2**20


def write_report(path: Path, report: dict[str, Any], methods: Sequence[str]) -> None:
    """One HTML file from a run's JSON."""
    sections = [_speed(report, methods), _plane(report, methods)]
    if report.get("stream"):
        sections.append(_stream(report["stream"], methods))
    if report.get("memory"):
        sections.append(memory_section(report["memory"]))
    sections.append(_troubles(report, methods))
    write_page(path, f"Speculation by text: {report['model']}", _facts(report), sections)


def _facts(report: dict[str, Any]) -> dict[str, str]:
    facts = {name: str(report[name]) for name in ("model", "dtype", "device")}
    facts |= {name: str(value) for name, value in report.get("machine", {}).items()}
    done, wanted = report["batches_done"], report["batches"]
    return {**facts, "command": report["command"], "measured": f"{done} of {wanted} batches"}


def _speed(report: dict[str, Any], methods: Sequence[str]) -> Section:
    drafting = [method for method in methods if method != PLAIN]
    figure = Figure()
    for method in drafting:
        rows = [of[method] for of in by_category(report)]
        up = [0.0 if row["speedup_high"] is None else row["speedup_high"] - row["speedup"] for row in rows]
        down = [0.0 if row["speedup_low"] is None else row["speedup"] - row["speedup_low"] for row in rows]
        figure.add_trace(
            Bar(
                name=method,
                x=[row["category"] for row in rows],
                y=[row["speedup"] for row in rows],
                error_y={"type": "data", "array": up, "arrayminus": down, "thickness": 1},
                text=[f"{row['speedup']:.2f}" for row in rows],
            )
        )
    figure.add_hline(y=1.0, line_dash="dash", annotation_text="off")
    figure.update_layout(title="Tokens per second over those of off", barmode="group", yaxis_rangemode="tozero")
    heads = ["category", "off tok/s", *drafting]
    cells = [
        [of[PLAIN]["category"], f"{of[PLAIN]['tokens_per_second']:.1f}", *(cell(of[method]) for method in drafting)]
        for of in by_category(report)
    ]
    text = (
        "Σ tokens / Σ seconds of decoding over the same of off, with the bootstrap's 95 % interval over prompts; "
        "in the table then c, the cost of a draft pass over that of a full one, α, the share of drafted tokens that "
        "were accepted, and committed tokens per round."
    )
    return Section("Speed-up by task", text, [Grid(heads, cells)], [figure])


def _plane(report: dict[str, Any], methods: Sequence[str]) -> Section:
    figure = Figure()
    for method in methods:
        rows = [row for row in report["rows"] if row["method"] == method and row["draft_cost_ratio"]]
        if rows:
            figure.add_trace(
                Scatter(
                    name=method,
                    x=[row["draft_cost_ratio"] for row in rows],
                    y=[row["acceptance_rate"] for row in rows],
                    mode="markers",
                    marker={"size": 10},
                    hovertext=[f"{row['category']}: {speed(row)}" for row in rows],
                )
            )
    figure.add_trace(Scatter(name="α = c", x=[0, 1], y=[0, 1], mode="lines", line={"dash": "dash", "color": "#808791"}))
    figure.update_layout(title="Is a draft worth its pass?", xaxis_title="c", yaxis_title="α")
    figure.update_xaxes(range=[0, 1.02])
    figure.update_yaxes(range=[0, 1.02])
    text = (
        "One mark for each method and category. Drafting one token at a time breaks even where α = c, if verifying "
        "it costs nothing; above the line it pays, below it every draft pass loses time. α counts all drafters, c only "
        "passes without some of the layers, so methods that also draft what they find in the text may pay below it."
    )
    return Section("Acceptance against cost", text, figures=[figure])


def _stream(stream: Sequence[dict[str, Any]], methods: Sequence[str]) -> Section:
    drafting = [method for method in methods if method != PLAIN]
    figures = []
    for name, title in (("acceptance_rate", "Acceptance, prompt by prompt"), ("speedup", "Tokens per second over off")):
        figure = Figure()
        for method in drafting:
            values = [one["methods"][method][name] for one in stream]
            lines = {"name": method, "x": list(range(1, len(stream) + 1)), "y": values, "mode": "lines+markers"}
            figure.add_trace(Scatter(**lines))
        for begin, end, segment in segments(stream):
            shade = "rgba(128,135,145,0.12)" if begin % 2 else "rgba(128,135,145,0.04)"
            edges = {"x0": begin + 0.5, "x1": end + 0.5, "line_width": 0, "fillcolor": shade}
            figure.add_vrect(**edges, annotation_text=segment, annotation_position="top left")
        figure.update_layout(title=title, xaxis_title="prompt", yaxis_rangemode="tozero")
        figures.append(figure)
    heads = ["segment", *(f"{method}: α, speed" for method in drafting)]
    rows = []
    for begin, end, segment in segments(stream):
        part = [one["methods"] for one in stream[begin:end]]
        rows.append([segment or "all", *(_mean(part, method) for method in drafting)])
    text = "The text changes its kind from segment to segment; a method that adapts keeps its acceptance."
    return Section("A stream of mixed text", text, [Grid(heads, rows)], figures)


def segments(stream: Sequence[dict[str, Any]]) -> list[tuple[int, int, str]]:
    """Where each begins and ends, and its name."""
    begins = [i for i, one in enumerate(stream) if i == 0 or stream[i - 1]["segment"] != one["segment"]]
    return [(i, j, stream[i]["segment"]) for i, j in zip(begins, [*begins[1:], len(stream)], strict=True)]


def _mean(part: Sequence[dict[str, Any]], method: str) -> str:
    shown = (sum(one[method][name] for one in part) / len(part) for name in ("acceptance_rate", "speedup"))
    return ", ".join(f"{value:.2f}" for value in shown)


def memory_section(memory: Sequence[dict[str, Any]]) -> Section:
    """Bytes with each way of speculating, each in a process of its own."""
    parts = [("weights", "weights"), ("kv_cache", "KV cache"), ("scratch", "scratch")]
    figure = Figure()
    for key, name in parts:
        values = [one[key] / MIB for one in memory]
        figure.add_trace(Bar(name=name, x=[one["method"] for one in memory], y=values))
    figure.update_layout(title="Memory in MiB", barmode="stack", yaxis_title="MiB")
    heads = ["method", "weights", "KV cache", "scratch", "peak RSS", "CUDA peak", "over off"]
    base = memory[0]["peak_rss"]
    rows = [
        [
            one["method"],
            *(f"{one[key] / MIB:.1f}" for key, _ in parts),
            f"{one['peak_rss'] / MIB:.1f}",
            "–" if one["cuda_peak"] is None else f"{one['cuda_peak'] / MIB:.1f}",
            f"{(one['peak_rss'] - base) / MIB:+.1f}",
        ]
        for one in memory
    ]
    text = (
        "MiB, each method in a process of its own on the same prompts. Scratch is what the peak holds over the memory "
        "of the loaded model before its first request."
    )
    return Section("Memory", text, [Grid(heads, rows)], [figure])


def _troubles(report: dict[str, Any], methods: Sequence[str]) -> Section:
    rows = [
        [row["category"], row["method"], troubles(row).strip(" ()")]
        for row in report["rows"]
        if row["method"] in methods and troubles(row)
    ]
    rows += [[one["category"], one["method"], one["error"]] for one in report["records"] if one["error"]]
    text = (
        "Answers that differ from those of off, and prompts that failed. In bfloat16 tokens whose logits differ by "
        "less than the format resolves may change places; in float32 nothing may differ."
        if rows
        else "None failed, and all answers are those of off."
    )
    return Section("Failures and differences", text, [Grid(["category", "method", "what"], rows)] if rows else [])
