"""From a step's report to counters, gauges and histograms."""

from __future__ import annotations

from collections import Counter
from time import monotonic

from swift_backend.metric_families import FAMILIES, OUTCOMES
from swift_backend.metrics import (
    RequestReport,
    StepReport,
    failed_report,
    gauges,
    increments,
    merged,
    observations,
)
from swift_backend.params import SamplingParams
from swift_backend.request_stats import RequestStats
from swift_backend.sequence import Request, Sequence
from swift_backend.speculation.draft import LAYER_SKIP, LOOKAHEAD, NGRAM, SIBLING, Draft


def sequence(output: int, reused: int = 0) -> Sequence:
    made = Sequence(Request("r", [5, 6, 7], SamplingParams(), print, arrived=10.0, label="mine"), 50, seed=0)
    made.tokens += range(output)
    made.first_token_at, made.last_token_at, made.reused_tokens = 12.0, 13.5, reused
    return made


def busy_report() -> StepReport:
    report = StepReport(running=3, waiting=2, kv_tokens_used=64, kv_tokens_kept=32, kv_tokens_capacity=128)
    report.search_seconds = 0.25
    skip, sibling, ngram = (LAYER_SKIP,), (SIBLING,), (NGRAM,)
    first = Draft((1, 2, 3, 9), (-1, 0, 1, 1), skip * 3 + sibling, seconds=0.5, passes=3)
    report.note_round(first.round((0, 1, 3), 4, 0.25, 0.125), skipped_sublayers=8)
    report.note_round(Draft((4,), drafters=skip).round((), 1, 0.25), skipped_sublayers=6)
    report.note_round(Draft().round((), 1, 0.25))
    report.note_round(Draft((5, 6), drafters=ngram * 2).round((0, 1), 2, 0.25))
    report.note_round(Draft((7, 8, 8), drafters=(LOOKAHEAD,) * 3, window=2).round((0,), 2, 0.25))
    report.note_tokens(sequence(9), 3)
    report.note_tokens(sequence(2, reused=16), 2)
    for outcome, count in (("length", 4), ("length", 1), ("timeout", 0)):
        stats = RequestStats(output_tokens=count, decode_seconds=0.6)
        report.ended.append(RequestReport("", outcome, 30, 1.5, stats))
    return report


def test_counters() -> None:
    assert increments(busy_report()) == {
        ("swift_requests_total", "length"): 2,
        ("swift_requests_total", "timeout"): 1,
        ("swift_prompt_tokens_total", ""): 3,  # of the one whose first token this is
        ("swift_reused_prompt_tokens_total", ""): 16,
        ("swift_generated_tokens_total", ""): 5,
        ("swift_rounds_total", ""): 5,
        ("swift_first_draft_tokens_total", ""): 4,
        ("swift_accepted_first_draft_tokens_total", ""): 3,
        ("swift_layer_search_seconds_total", ""): 0.25,
        ("swift_rounds_without_draft_total", ""): 1,
        ("swift_draft_passes_total", ""): 3,
        ("swift_draft_seconds_total", ""): 0.5,
        ("swift_verify_seconds_total", ""): 1.25,
        ("swift_decide_seconds_total", ""): 0.125,
        ("swift_draft_tokens_total", "layer_skip"): 4,
        ("swift_draft_tokens_total", "sibling"): 1,
        ("swift_accepted_draft_tokens_total", "sibling"): 1,
        ("swift_draft_tokens_total", "ngram"): 2,
        ("swift_accepted_draft_tokens_total", "layer_skip"): 2,
        ("swift_accepted_draft_tokens_total", "ngram"): 2,
        ("swift_draft_tokens_total", "lookahead"): 1,
        ("swift_accepted_draft_tokens_total", "lookahead"): 1,
    }


def test_a_step_that_did_nothing_adds_nothing() -> None:
    assert increments(StepReport()) == {}
    assert observations(StepReport()) == []


def test_gauges() -> None:
    """The skipped sublayers are those of the latest pass that skipped any."""
    assert gauges(busy_report()) == {
        ("swift_running_requests", ""): 3,
        ("swift_waiting_requests", ""): 2,
        ("swift_kv_tokens_used", ""): 64,
        ("swift_kv_tokens_kept", ""): 32,
        ("swift_kv_tokens_capacity", ""): 128,
        ("swift_skipped_sublayers", ""): 6,
    }


def test_histograms() -> None:
    """Time to the first token with the first one only; per token where there were two; a round where it had a draft."""
    assert observations(busy_report()) == [
        ("swift_time_to_first_token_seconds", 2.0),
        ("swift_time_per_output_token_seconds", 0.6 / 3),
        ("swift_request_seconds", 1.5),
        ("swift_request_seconds", 1.5),
        ("swift_request_seconds", 1.5),
        ("swift_accepted_per_round", 3.0),
        ("swift_accepted_per_round", 0.0),
        ("swift_accepted_per_round", 2.0),
        ("swift_accepted_per_round", 1.0),
    ]


def test_whatever_is_reported_is_declared() -> None:
    """A name or label that is not would be a KeyError in the server, in the middle of the traffic."""
    report = busy_report()
    report.ended += [RequestReport("", outcome, 1, 1.0, RequestStats()) for outcome in OUTCOMES]
    counters = {(f.name, value) for f in FAMILIES if f.kind == "counter" for value in f.values or ("",)}
    assert set(increments(report)) == counters
    assert set(gauges(report)) == {(family.name, "") for family in FAMILIES if family.kind == "gauge"}
    assert {name for name, _ in observations(report)} == {f.name for f in FAMILIES if f.kind == "histogram"}


def test_buckets_rise_and_belong_to_histograms() -> None:
    for family in FAMILIES:
        assert list(family.buckets) == sorted(set(family.buckets))
        assert bool(family.buckets) == (family.kind == "histogram")
        assert bool(family.label) == bool(family.values)


def test_an_ended_request() -> None:
    report, ended = StepReport(), sequence(4)
    ended.finish_reason = "stop"
    report.note_end(ended, now=14.0)
    [one] = report.ended
    assert (one.label, one.outcome, one.num_prompt_tokens, one.seconds) == ("mine", "stop", 3, 4.0)
    assert (one.stats.output_tokens, one.seconds_per_output_token) == (4, 0.5)


def test_a_request_that_the_engine_took_with_it() -> None:
    one = failed_report(Request("r", [5, 6], SamplingParams(), print, arrived=monotonic() - 3, label="mine"))
    assert (one.label, one.outcome, one.num_prompt_tokens, one.stats) == ("mine", "error", 2, RequestStats())
    assert 3 <= one.seconds < 4


def test_consecutive_steps_as_one() -> None:
    """What is published of several steps at once is what each of them would have added, and how the last one stood."""
    first = StepReport(
        first_token_seconds=[0.5], accepted_per_round=[2], prompt_tokens=20, generated_tokens=3,
        reused_prompt_tokens=16, rounds=2, rounds_without_draft=1, draft_passes=2,
        draft_tokens=Counter(layer_skip=4), accepted_draft_tokens=Counter(layer_skip=2), running=5, kv_tokens_used=64,
    )  # fmt: skip
    last = StepReport(
        accepted_per_round=[0], prompt_tokens=5, generated_tokens=1, rounds=1, first_draft_tokens=1,
        accepted_first_draft_tokens=1, search_seconds=0.5, draft_seconds=0.25, verify_seconds=0.5, decide_seconds=0.125,
        draft_tokens=Counter(layer_skip=1, other=2),
        accepted_draft_tokens=Counter(layer_skip=0), running=4, kv_tokens_used=48, skipped_sublayers=24,
    )  # fmt: skip
    both = merged([first, last])
    counted = Counter(increments(first)) + Counter(increments(last))
    assert increments(both) == dict(counted)
    assert observations(both) == [*observations(first), *observations(last)]
    assert gauges(both) == gauges(last)
    assert merged([last]) == last
