"""What /metrics shows, figure by figure, and what it must never be told."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import triton_python_backend_utils as pb_utils
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swift_backend.metric_families import FAMILIES, OUTCOMES
from swift_backend.metrics import RequestReport, StepReport
from swift_backend.request_stats import RequestStats
from swift_backend.serving.triton_metrics import TritonMetrics
from swift_backend.speculation.draft import Draft

# ../shared/CONTRACT.md, "Metrics": names, kinds and labels are fixed.
CONTRACT = {
    "swift_requests_total": ("counter", "outcome"),
    "swift_prompt_tokens_total": ("counter", ""),
    "swift_generated_tokens_total": ("counter", ""),
    "swift_rounds_total": ("counter", ""),
    "swift_draft_tokens_total": ("counter", "drafter"),
    "swift_accepted_draft_tokens_total": ("counter", "drafter"),
    "swift_running_requests": ("gauge", ""),
    "swift_waiting_requests": ("gauge", ""),
    "swift_kv_tokens_used": ("gauge", ""),
    "swift_kv_tokens_capacity": ("gauge", ""),
    "swift_skipped_sublayers": ("gauge", ""),
    "swift_time_to_first_token_seconds": ("histogram", ""),
    "swift_time_per_output_token_seconds": ("histogram", ""),
    "swift_request_seconds": ("histogram", ""),
    "swift_accepted_per_round": ("histogram", ""),
}
ADDED = {
    "swift_reused_prompt_tokens_total": ("counter", ""),
    "swift_kv_tokens_kept": ("gauge", ""),
    "swift_first_draft_tokens_total": ("counter", ""),
    "swift_accepted_first_draft_tokens_total": ("counter", ""),
    "swift_layer_search_seconds_total": ("counter", ""),
    "swift_rounds_without_draft_total": ("counter", ""),
    "swift_draft_passes_total": ("counter", ""),
    "swift_draft_seconds_total": ("counter", ""),
    "swift_verify_seconds_total": ("counter", ""),
    "swift_decide_seconds_total": ("counter", ""),
}

REPORT = StepReport(
    ended=[
        RequestReport("a", "stop", 7, 2.5, RequestStats(output_tokens=5, decode_seconds=2.0)),
        RequestReport("b", "stop", 3, 0.5, RequestStats(output_tokens=1)),
        RequestReport("c", "timeout", 4, 9.0, RequestStats()),
    ],
    first_token_seconds=[0.25, 0.75],
    accepted_per_round=[0, 4],
    prompt_tokens=10,
    generated_tokens=6,
    reused_prompt_tokens=2,
    rounds=3,
    draft_tokens=Counter({"layer_skip": 9}),
    accepted_draft_tokens=Counter({"layer_skip": 4}),
    running=5,
    waiting=1,
    kv_tokens_used=40,
    kv_tokens_kept=8,
    kv_tokens_capacity=100,
    skipped_sublayers=12,
    first_draft_tokens=2,
    accepted_first_draft_tokens=1,
    search_seconds=0.125,
    rounds_without_draft=1,
    draft_passes=8,
    draft_seconds=0.5,
    verify_seconds=0.75,
    decide_seconds=0.0625,
)
SHOWN = {
    ("swift_requests_total", (("outcome", "stop"),)): 2,
    ("swift_requests_total", (("outcome", "timeout"),)): 1,
    ("swift_prompt_tokens_total", ()): 10,
    ("swift_reused_prompt_tokens_total", ()): 2,
    ("swift_generated_tokens_total", ()): 6,
    ("swift_rounds_total", ()): 3,
    ("swift_first_draft_tokens_total", ()): 2,
    ("swift_accepted_first_draft_tokens_total", ()): 1,
    ("swift_layer_search_seconds_total", ()): 0.125,
    ("swift_rounds_without_draft_total", ()): 1,
    ("swift_draft_passes_total", ()): 8,
    ("swift_draft_seconds_total", ()): 0.5,
    ("swift_verify_seconds_total", ()): 0.75,
    ("swift_decide_seconds_total", ()): 0.0625,
    ("swift_draft_tokens_total", (("drafter", "layer_skip"),)): 9,
    ("swift_accepted_draft_tokens_total", (("drafter", "layer_skip"),)): 4,
    ("swift_running_requests", ()): 5,
    ("swift_waiting_requests", ()): 1,
    ("swift_kv_tokens_used", ()): 40,
    ("swift_kv_tokens_kept", ()): 8,
    ("swift_kv_tokens_capacity", ()): 100,
    ("swift_skipped_sublayers", ()): 12,
}
OBSERVED = {
    "swift_time_to_first_token_seconds": [0.25, 0.75],
    "swift_time_per_output_token_seconds": [0.5],
    "swift_request_seconds": [2.5, 0.5, 9.0],
    "swift_accepted_per_round": [0.0, 4.0],
}
GAUGES = [name for name, (kind, _) in {**CONTRACT, **ADDED}.items() if kind == "gauge"]


def test_names_kinds_and_labels_are_the_contracts() -> None:
    assert {family.name: (family.kind, family.label) for family in FAMILIES} == {**CONTRACT, **ADDED}
    assert len(FAMILIES) == 25 and all(family.help for family in FAMILIES)


def test_every_series_is_there_from_the_start(triton: Any) -> None:
    """A rate needs the 0 before the first 1."""
    TritonMetrics()
    assert triton.shown() == {}
    assert [triton.count("swift_requests_total", outcome=one) for one in OUTCOMES] == [0] * 7
    assert [triton.observed(name) for name in OBSERVED] == [[]] * 4
    assert [triton.count(name) for name in GAUGES] == [0] * 6


def test_a_step_shows_in_every_figure(triton: Any) -> None:
    TritonMetrics().step_done(REPORT)
    assert triton.shown() == SHOWN
    assert {name: triton.observed(name) for name in OBSERVED} == OBSERVED


def test_counters_add_up_and_gauges_follow(triton: Any) -> None:
    metrics = TritonMetrics()
    metrics.step_done(REPORT)
    metrics.step_done(StepReport(rounds=2, running=1, kv_tokens_used=10, kv_tokens_capacity=100))
    assert (triton.count("swift_rounds_total"), triton.count("swift_generated_tokens_total")) == (5, 6)
    assert [triton.count(name) for name in GAUGES] == [1, 0, 10, 100, 0, 0]


def test_what_does_not_change_is_not_sent(triton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change is a round trip to the server's process."""
    metrics, idle = TritonMetrics(), StepReport(running=1, kv_tokens_capacity=100)
    metrics.step_done(idle)
    sent: list[float] = []
    monkeypatch.setattr(pb_utils.Metric, "increment", lambda self, value: sent.append(value))
    metrics.step_done(idle)
    assert sent == []


def test_a_refused_request_is_counted_by_its_outcome(triton: Any) -> None:
    metrics = TritonMetrics()
    for outcome in ("invalid", "invalid", "unavailable", "error"):
        metrics.request_refused(outcome)
    counts = {one: triton.count("swift_requests_total", outcome=one) for one in OUTCOMES}
    expected = {"stop": 0, "length": 0, "cancelled": 0, "timeout": 0, "error": 1, "invalid": 2, "unavailable": 1}
    assert counts == expected


def test_the_instances_gauges_add_up_and_go_with_them(triton: Any) -> None:
    """They are processes that share Triton's series, which outlive the model."""
    first, second = TritonMetrics(), TritonMetrics()
    first.step_done(StepReport(running=3, kv_tokens_capacity=100))
    second.step_done(StepReport(running=4, kv_tokens_capacity=50))
    assert [triton.count(name) for name in GAUGES] == [7, 0, 0, 150, 0, 0]
    first.step_done(StepReport(running=1, kv_tokens_capacity=100))
    assert triton.count("swift_running_requests") == 5
    first.close()
    assert [triton.count(name) for name in GAUGES] == [4, 0, 0, 50, 0, 0]
    first.close()
    second.close()
    assert [triton.count(name) for name in GAUGES] == [0] * 6


def test_counters_stay_after_the_end(triton: Any) -> None:
    metrics = TritonMetrics()
    metrics.step_done(REPORT)
    metrics.close()
    assert triton.shown() == {key: value for key, value in SHOWN.items() if key[0].endswith("_total")}


def test_a_release_without_histograms_shows_the_rest(triton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 24.08 MetricFamily has no HISTOGRAM."""
    monkeypatch.delattr(pb_utils.MetricFamily, "HISTOGRAM")
    TritonMetrics().step_done(REPORT)
    assert triton.shown() == SHOWN
    assert (pb_utils.Metric.observed, triton.log) == ({}, [])


def test_a_server_without_metrics_is_told_about_once(triton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """tritonserver --allow-metrics=false."""
    monkeypatch.setattr(pb_utils.MetricFamily, "available", False)
    metrics = TritonMetrics()
    metrics.step_done(REPORT)
    metrics.request_refused("invalid")
    metrics.close()
    assert triton.log == [("warn", "no metrics of ours: failed to create metric family: metrics are disabled")]
    assert (pb_utils.Metric.values, pb_utils.Metric.observed) == ({}, {})


def test_a_server_that_stops_taking_new_families_shows_none(triton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All or nothing: half of the figures would look like a quiet engine."""
    make, made = pb_utils.MetricFamily.__init__, []

    def some(self: Any, name: str, description: str, kind: str) -> None:
        made.append(name)
        if len(made) > 5:
            raise triton.Exception("no more")
        make(self, name, description, kind)

    monkeypatch.setattr(pb_utils.MetricFamily, "__init__", some)
    TritonMetrics().step_done(REPORT)
    assert (triton.shown(), triton.log) == ({}, [("warn", "no metrics of ours: no more")])


def test_families_live_as_long_as_their_metrics(triton: Any) -> None:
    """Triton forgets a family that nobody in the stub refers to, and its figures with it."""
    kept = TritonMetrics()._families.values()
    assert [family.name for family in kept] == [family.name for family in FAMILIES]


def test_a_drafter_that_nobody_listed_is_counted_too(triton: Any) -> None:
    TritonMetrics().step_done(StepReport(draft_tokens=Counter(oracle=5), accepted_draft_tokens=Counter(oracle=3)))
    assert triton.count("swift_draft_tokens_total", drafter="oracle") == 5
    assert triton.count("swift_accepted_draft_tokens_total", drafter="oracle") == 3


COUNTS = st.integers(0, 2**40)
SECONDS = st.floats(0, 1e9)
STATS = st.builds(RequestStats, output_tokens=COUNTS, decode_seconds=SECONDS)
ENDED = st.builds(RequestReport, st.text(), st.sampled_from(OUTCOMES), COUNTS, SECONDS, STATS)


@st.composite
def reports(draw: st.DrawFn) -> StepReport:
    """Reports as the engine makes them."""
    names = ("running", "waiting", "kv_tokens_used", "kv_tokens_kept", "kv_tokens_capacity", "skipped_sublayers")
    report = StepReport(
        ended=draw(st.lists(ENDED, max_size=3)),
        first_token_seconds=draw(st.lists(SECONDS, max_size=2)),
        generated_tokens=draw(COUNTS),
        reused_prompt_tokens=draw(COUNTS),
        **{name: draw(COUNTS) for name in names},
    )
    for length in draw(st.lists(st.integers(0, 8), max_size=4)):
        drafter, accepted = draw(st.sampled_from(["layer_skip", "other"])), draw(st.integers(0, length))
        draft = Draft(tuple(range(length)), drafters=(drafter,) * length, passes=length)
        report.note_round(draft.round(range(accepted), accepted + 1, draw(SECONDS)), draw(COUNTS))
    return report


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(reports(), min_size=1, max_size=4))
def test_no_report_ends_the_server(triton: Any, history: list[StepReport]) -> None:
    """Triton 2.51 aborts when a counter is told a negative number or none at all; the fake then raises."""
    pb_utils.Metric.values.clear()
    metrics = TritonMetrics()
    for report in history:
        metrics.step_done(report)
    assert triton.count("swift_requests_total", outcome="stop") == sum(
        request.outcome == "stop" for report in history for request in report.ended
    )
    assert triton.count("swift_rounds_total") == sum(report.rounds for report in history)
    assert triton.count("swift_waiting_requests") == history[-1].waiting
    metrics.close()
    assert [triton.count(name) for name in GAUGES] == [0] * 6


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), float("-inf")])
def test_not_even_a_wrong_report_ends_the_server(triton: Any, wrong: float) -> None:
    report = StepReport(generated_tokens=wrong, rounds=2)  # type: ignore[arg-type]
    TritonMetrics().step_done(report)
    assert triton.shown() == {("swift_rounds_total", ()): 2}
