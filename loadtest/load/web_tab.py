"""What do Locust's own figures lack? A tab of its web page with what speculation did."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from flask import Response, request

KEY = "speculation"
FIGURES = {
    "tokens_per_second": "Tokens/s",
    "acceptance_rate": "Acceptance",
    "ttft_p50": "First token p50 (ms)",
    "ttft_p90": "First token p90 (ms)",
    "inter_token_p50": "Per token p50 (ms)",
    "inter_token_p90": "Per token p90 (ms)",
    "output_tokens": "Tokens",
    "failures": "Failures",
}


def add_tab(web_ui: Any, summary: Callable[[], dict[str, Any] | None]) -> None:
    """Add the tab to a running web page; summary: of the requests so far, if there is a test."""
    web_ui.template_args |= {
        "extended_tabs": [{"title": "Speculation", "key": KEY}],
        "extended_tables": [
            {"key": KEY, "structure": [{"key": name, "title": title} for name, title in FIGURES.items()]}
        ],
    }

    @web_ui.app.route("/speculation")
    def speculation() -> Response:
        return Response(json.dumps(summary()), mimetype="application/json")

    @web_ui.app.after_request
    def extend(response: Response) -> Response:
        if request.path == "/stats/requests" and response.is_json:
            known = summary()
            added = {"extended_stats": [{"key": KEY, "data": [row(known)] if known else []}]}
            response.set_data(json.dumps({**(response.json or {}), **added}))
        return response


def row(summary: dict[str, Any]) -> dict[str, Any]:
    """The tab's line: times in milliseconds, as on the rest of the page."""
    latencies = {
        f"{name}_{share}": None if summary[name][share] is None else round(1000 * summary[name][share], 1)
        for name in ("ttft", "inter_token")
        for share in ("p50", "p90")
    }
    rates = {"tokens_per_second": round(summary["tokens_per_second"], 1)}
    rates["acceptance_rate"] = round(summary["acceptance_rate"], 3)
    return {**rates, **latencies, "output_tokens": summary["output_tokens"], "failures": summary["failures"]}
