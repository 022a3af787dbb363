"""Reports become metrics and log lines on one thread, and hold up nobody."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from threading import Event, Thread, current_thread
from typing import Any

import pytest
import triton_python_backend_utils as pb_utils

from swift_backend.metrics import RequestReport, StepReport
from swift_backend.request_stats import RequestStats
from swift_backend.serving.reporter import Reporter

STATS = RequestStats(
    rounds=3,
    draft_tokens=9,
    accepted_draft_tokens=4,
    output_tokens=8,
    time_to_first_token=0.12345678,
    decode_seconds=1.5,
    draft_seconds=0.4,
    reused_prompt_tokens=16,
    layer_set="0x3c",
    draft_cost_ratio=0.62341,
    first_draft_tokens=3,
    accepted_first_draft_tokens=2,
    tried_draft_tokens=7,
    accepted_chain_tokens=4,
    rounds_without_draft=1,
    draft_passes=6,
    drafted={"layer_skip": 7, "sibling": 2},
    accepted={"layer_skip": 4},
    verify_seconds=1.0,
    decide_seconds=0.00123456,
    search_seconds=0.04,
)
DONE = RequestReport("'job'", "length", 20, 1.99999999, STATS)
LINE = {
    "request": "'job'",
    "outcome": "length",
    "prompt_tokens": 20,
    "reused_prompt_tokens": 16,
    "output_tokens": 8,
    "seconds": 2.0,
    "time_to_first_token": 0.123457,
    "decode_seconds": 1.5,
    "rounds": 3,
    "rounds_without_draft": 1,
    "draft_passes": 6,
    "drafted": {"layer_skip": 7, "sibling": 2},
    "accepted": {"layer_skip": 4},
    "draft_seconds": 0.4,
    "verify_seconds": 1.0,
    "decide_seconds": 0.001235,
    "draft_tokens": 9,
    "accepted_draft_tokens": 4,
    "first_acceptance_rate": 0.6667,
    "later_acceptance_rate": 0.5,
    "layer_set": "0x3c",
    "draft_cost_ratio": 0.6234,
    "search_seconds": 0.04,
}


@pytest.fixture
def reporter(triton: Any) -> Iterator[Reporter]:
    made = Reporter(enabled=True)
    made.start()
    yield made
    made.close(5)


def lines(triton: Any) -> list[Any]:
    """The verbose log, each line parsed; fails on any other level."""
    assert [level for level, _ in triton.log] == ["verbose"] * len(triton.log)
    assert all("\n" not in message for _, message in triton.log)
    return [json.loads(message) for _, message in triton.log]


def test_a_finished_request_is_one_verbose_line(triton: Any, reporter: Reporter) -> None:
    reporter.on_step(StepReport(ended=[DONE]))
    assert reporter.close(5) is True
    assert lines(triton) == [LINE]


def test_a_refused_request_is_one_verbose_line_too(triton: Any, reporter: Reporter) -> None:
    reporter.refused("#3", "invalid")
    reporter.refused("'x'", "unavailable")
    assert reporter.close(5) is True
    assert lines(triton) == [
        {"request": "#3", "outcome": "invalid"},
        {"request": "'x'", "outcome": "unavailable"},
    ]
    assert triton.count("swift_requests_total", outcome="invalid") == 1
    assert triton.count("swift_requests_total", outcome="unavailable") == 1


def test_a_step_in_which_nobody_ends_is_no_line(triton: Any, reporter: Reporter) -> None:
    for _ in range(5):
        reporter.on_step(StepReport(rounds=2, generated_tokens=3, running=2))
    assert reporter.close(5) is True
    assert (triton.log, triton.count("swift_generated_tokens_total")) == ([], 15)


def test_whatever_clients_call_their_requests_stays_one_line(triton: Any, reporter: Reporter) -> None:
    names = ["'\ud800'", '"quoted"', "two\nlines", "ü", "\0"]
    for name in names:
        reporter.refused(name, "invalid")
    assert reporter.close(5) is True
    assert [line["request"] for line in lines(triton)] == names


def test_without_metrics_there_are_lines_all_the_same(triton: Any) -> None:
    quiet = Reporter(enabled=False)
    quiet.start()
    quiet.on_step(StepReport(ended=[DONE], running=1))
    quiet.refused("'x'", "invalid")
    assert quiet.close(5) is True
    assert lines(triton) == [LINE, {"request": "'x'", "outcome": "invalid"}]
    assert (pb_utils.Metric.values, pb_utils.Metric.observed) == ({}, {})


def test_only_one_thread_touches_the_metrics(triton: Any, reporter: Reporter) -> None:
    """Triton 2.51 crashes where two threads use one Metric."""

    def report() -> None:
        for _ in range(50):
            reporter.on_step(StepReport(ended=[DONE], rounds=1, running=1))
            reporter.refused("'x'", "invalid")

    threads = [Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reporter.close(5) is True
    assert triton.metric_threads == {reporter._thread} and current_thread() not in triton.metric_threads
    assert triton.count("swift_requests_total", outcome="length") == 200
    assert triton.count("swift_requests_total", outcome="invalid") == 200
    assert triton.count("swift_rounds_total") == 200


def test_nobody_waits_for_a_slow_server(triton: Any, reporter: Reporter, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Event()
    monkeypatch.setattr(pb_utils.Logger, "log_verbose", lambda message: door.wait(5))
    began = time.monotonic()
    for _ in range(100):
        reporter.on_step(StepReport(ended=[DONE]))
        reporter.refused("'x'", "invalid")
    assert time.monotonic() - began < 0.5
    assert reporter.close(0.05) is False
    door.set()
    assert reporter.close(5) is True


def test_the_end_reports_what_is_queued_and_takes_the_gauges_back(triton: Any, reporter: Reporter) -> None:
    reporter.on_step(StepReport(running=2, kv_tokens_capacity=100))
    eventually(lambda: triton.count("swift_kv_tokens_capacity") == 100)
    for _ in range(100):
        reporter.on_step(StepReport(running=1, kv_tokens_capacity=100, rounds=1))
    assert reporter.close(5) is True
    assert triton.shown() == {("swift_rounds_total", ()): 100}


def test_metrics_that_break_are_given_up_and_the_lines_go_on(
    triton: Any, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a thread that empties it, the queue would grow as long as the server runs."""
    monkeypatch.setattr(pb_utils.Metric, "broken", True)
    for _ in range(3):
        reporter.on_step(StepReport(ended=[DONE]))
    assert reporter.close(5) is True
    assert triton.log[0] == ("warn", "no more metrics of ours: the server does not answer")
    assert [json.loads(message) for level, message in triton.log[1:] if level == "verbose"] == [LINE] * 3
    assert len(triton.log) == 4


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)
