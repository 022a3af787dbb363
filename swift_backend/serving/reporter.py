"""Who tells Triton what the engine does? A thread of its own, since every figure is a round trip to the server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

import triton_python_backend_utils as pb_utils

from swift_backend.metrics import RequestReport, StepReport, merged
from swift_backend.serving.triton_errors import printable
from swift_backend.serving.triton_metrics import TritonMetrics


class Reporter:
    """Turns the engine's reports into Triton's metrics and, at its verbose level, into a log line per request."""

    def __init__(self, *, enabled: bool) -> None:
        """enabled: whether there are metrics; the log lines are Triton's to show or not."""
        self._metrics = TritonMetrics() if enabled else None
        self._queue: SimpleQueue[StepReport | tuple[str, str] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="swift-reporter", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def on_step(self, report: StepReport) -> None:
        """Take the report of a step. Any thread; never blocks."""
        self._queue.put(report)

    def refused(self, label: str, outcome: str) -> None:
        """Count a request that never reached the engine. Any thread; never blocks."""
        self._queue.put((label, outcome))

    def close(self, timeout: float) -> bool:
        """Report what is queued and stop; False if that took too long (seconds)."""
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        items = self._take()
        while items:
            if steps := [item for item in items if isinstance(item, StepReport)]:
                self._step(merged(steps))
            for item in items:
                if isinstance(item, tuple):
                    self._refused(*item)
            items = self._take() if items[-1] is not None else []
        self._update(TritonMetrics.close)

    def _take(self) -> list[StepReport | tuple[str, str] | None]:
        """All that is queued, at least one: where steps are quicker than Triton, several are published as one."""
        items = [self._queue.get()]
        with contextlib.suppress(Empty):
            while items[-1] is not None:
                items.append(self._queue.get_nowait())
        return items

    def _step(self, report: StepReport) -> None:
        self._update(lambda metrics: metrics.step_done(report))
        for request in report.ended:
            pb_utils.Logger.log_verbose(printable(_line(request)))

    def _refused(self, label: str, outcome: str) -> None:
        self._update(lambda metrics: metrics.request_refused(outcome))
        pb_utils.Logger.log_verbose(printable(json.dumps({"request": label, "outcome": outcome})))

    def _update(self, change: Callable[[TritonMetrics], None]) -> None:
        """Metrics that Triton does not take any more are given up; the reports go on."""
        try:
            if self._metrics is not None:
                change(self._metrics)
        except pb_utils.TritonModelException as error:
            self._metrics = None
            pb_utils.Logger.log_warn(printable(f"no more metrics of ours: {error}"))


def _line(report: RequestReport) -> str:
    """One request as a JSON object; times in seconds."""
    stats = report.stats
    return json.dumps(
        {
            "request": report.label,
            "outcome": report.outcome,
            "prompt_tokens": report.num_prompt_tokens,
            "reused_prompt_tokens": stats.reused_prompt_tokens,
            "output_tokens": stats.output_tokens,
            "seconds": round(report.seconds, 6),
            "time_to_first_token": round(stats.time_to_first_token, 6),
            "decode_seconds": round(stats.decode_seconds, 6),
            "rounds": stats.rounds,
            "rounds_without_draft": stats.rounds_without_draft,
            "draft_passes": stats.draft_passes,
            "drafted": dict(stats.drafted),
            "accepted": dict(stats.accepted),
            "draft_seconds": round(stats.draft_seconds, 6),
            "verify_seconds": round(stats.verify_seconds, 6),
            "decide_seconds": round(stats.decide_seconds, 6),
            "draft_tokens": stats.draft_tokens,
            "accepted_draft_tokens": stats.accepted_draft_tokens,
            "first_acceptance_rate": round(stats.first_acceptance_rate, 4),
            "later_acceptance_rate": round(stats.later_acceptance_rate, 4),
            "layer_set": stats.layer_set,
            "draft_cost_ratio": round(stats.draft_cost_ratio, 4),
            "search_seconds": round(stats.search_seconds, 6),
        }
    )
