"""What load-test users ask, how many there are, and what their figures come to."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st
from swift_client import FakeTransport, Pause, QueueFull, Retry, SwiftClient, fake_response

from loadtest.load.asking import ask, asked
from loadtest.load.outcome import Outcome, read_outcomes
from loadtest.load.sample import SAMPLE
from loadtest.load.shapes import SHAPES, users_at
from loadtest.load.summary import arrived, summary
from loadtest.load.thresholds import OPTIONS, Thresholds, add_options, thresholds_of
from loadtest.load.web_tab import FIGURES, add_tab, row
from loadtest.load.workloads import LONG_PROMPT, WORKLOADS, Deck, prompts_of
from loadtest.speedup.prompts import GUIDE_ROWS
from swift_backend.errors import InvalidRequest
from swift_backend.text import dataset


def outcome(started: float = 0.0, *arrivals: tuple[float, int], error: str = "", **more: Any) -> Outcome:
    total = arrivals[-1][0] if arrivals else 0.0
    tokens = sum(count for _, count in arrivals)
    return Outcome(0, started, list(arrivals), total, tokens, finish_reason="length", error=error, **more)


def test_a_client_sees_every_chunk_and_every_error() -> None:
    last = fake_response("b c", [2, 3], "length", drafted=6, accepted=2)
    transport = FakeTransport(
        [fake_response("a", [1], drafted=3), Pause(0.05), last], [QueueFull("4 of 4 requests wait")]
    )
    seen: list[None] = []
    with SwiftClient(transport=transport, retry=Retry(0)) as client:
        whole = ask(client, 3, {"prompt": "Hi"}, {"max_tokens": 3}, lambda: seen.append(None))
        refused = ask(client, 3, {"prompt": "Hi"}, {})
    assert (whole.user, whole.tokens, whole.error, whole.finish_reason) == (3, 3, "", "length")
    assert (whole.draft_tokens, whole.accepted_draft_tokens, len(seen)) == (6, 2, 2)
    [(gap, tokens)] = whole.gaps
    assert tokens == 2 and 0.04 < gap < whole.total and whole.first_token is not None
    assert refused.error.startswith("QueueFull: 4 of 4 requests wait") and refused.first_token is None
    assert refused.request_id not in refused.error  # or no two errors would be the same


def test_prompts_go_out_as_messages_or_as_they_are() -> None:
    assert asked("Hi", "chat") == {"messages": [{"role": "user", "content": "Hi"}]}
    assert asked("Hi", "raw") == {"prompt": "Hi"}


def test_outcomes_come_back_from_their_file(tmp_path: Path) -> None:
    """As far as it was written."""
    some = [outcome(1.0, (0.5, 1), (0.75, 2)), outcome(2.0, error="X: y")]
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(one.line() for one in some) + some[0].line()[:40])
    assert list(read_outcomes(path)) == some
    assert list(read_outcomes(tmp_path / "none")) == []


def test_a_summary_counts_whole_answers_and_all_tokens() -> None:
    """Chunks without tokens are no arrivals; what came after the time is not in the speed, though in the tokens."""
    outcomes = [
        outcome(10.0, (0.2, 1), (0.3, 0), (0.6, 2), draft_tokens=4, accepted_draft_tokens=1),
        outcome(10.5, (0.4, 1), (9.9, 1)),
        outcome(10.1, (0.1, 1), error="ConnectionFailed: gone"),
    ]
    made = summary(outcomes, 2.0)
    assert (made["requests"], made["failures"], made["errors"]) == (3, 1, {"ConnectionFailed: gone": 1})
    assert made["ttft"]["p50"] == pytest.approx(0.3) and made["end_to_end"]["p50"] == pytest.approx((0.6 + 9.9) / 2)
    assert made["chunk_gap"]["p50"] == pytest.approx((0.4 + 9.5) / 2)
    assert made["inter_token"]["p50"] == pytest.approx(0.2)  # of 0.2, 0.2 and 9.5
    assert (made["output_tokens"], made["tokens_per_second"]) == (6, 2.5)
    assert made["acceptance_rate"] == 0.25 and made["finish_reasons"] == {"length": 2}
    assert arrived(outcomes, 10.0, 0.2) == 2


def test_nothing_is_no_figure() -> None:
    made = summary([], 1.0)
    assert made["ttft"] == {"p50": None, "p90": None, "p99": None} and made["tokens_per_second"] == 0.0
    assert Thresholds().broken(made) == ["no requests were made"]
    assert row(made)["ttft_p90"] is None


def test_thresholds_say_what_is_broken() -> None:
    made = summary([outcome(0.0, (0.5, 1), (0.9, 1)), outcome(0.0, error="X")], 1.0)
    assert Thresholds(failures=0.5).broken(made) == []
    assert Thresholds().broken(made) == ["50.0% of the requests failed, allowed are 0.0%"]
    strict = Thresholds(None, ttft_p90=0.4, inter_token_p90=0.5, end_to_end_p90=0.8, tokens_per_second=3.0)
    assert strict.broken(made) == [
        "ttft p90 is 0.500 s, allowed are 0.4 s",
        "end_to_end p90 is 0.900 s, allowed are 0.8 s",
        "2.0 tokens/s, wanted are 3",
    ]
    none = summary([outcome(0.0, error="X")], 1.0)
    assert "ttft p90 is unknown, allowed are 0.4 s" in strict.broken(none)


def test_thresholds_are_options() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    assert thresholds_of(parser.parse_args([])) == Thresholds()
    flags = [part for flag, _ in OPTIONS.values() for part in (flag, "2.5")]
    assert thresholds_of(parser.parse_args(flags)) == Thresholds(2.5, 2.5, 2.5, 2.5, 2.5)


@given(st.sampled_from(list(SHAPES)), st.floats(0, 99.9), st.integers(1, 64))
def test_there_is_always_somebody_and_never_too_many(name: str, seconds: float, most: int) -> None:
    users = users_at(name, seconds, 100.0, most)
    assert users is not None and 1 <= users <= most
    assert users_at(name, 100.0, 100.0, most) is None
    assert users_at(name, 1e6, None, most) is not None


def test_shapes() -> None:
    def course(name: str) -> list[int | None]:
        return [users_at(name, second, 100.0, 8) for second in range(0, 100, 10)]

    assert course("constant") == [8] * 10
    assert course("steps") == [2, 2, 2, 4, 4, 6, 6, 6, 8, 8]
    assert course("spike") == [2, 2, 2, 2, 8, 8, 2, 2, 2, 2]
    waves = [users_at("soak", second, 100.0, 8) for second in range(100)]
    assert {min(waves), max(waves)} == {4, 8} and waves.count(8) < 40


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=str)
def test_every_workload_has_prompts(workload: Any, tmp_path: Path) -> None:
    prompts = prompts_of(workload)
    assert len(prompts) == len(set(prompts)) >= 3 and all(prompts)
    assert (min(map(len, prompts)) > LONG_PROMPT) == (workload.name == "long")
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"category": "mine", "turns": ["my own"]}))
    assert all("my own" in prompt for prompt in prompts_of(workload, [own]))


def test_the_sample_is_a_dataset_with_the_guides_rows() -> None:
    categories = {one.category for one in dataset.read_rows(SAMPLE)}
    assert {GUIDE_ROWS.get(name) for name in categories} == {"HumanEval", "GSM8K", "CNN/DM", "MT-Bench", "WMT", None}
    assert {name for workload in WORKLOADS.values() for name in workload.categories} <= categories
    with pytest.raises(InvalidRequest, match="dataset"):
        prompts_of(WORKLOADS["mixed"], [Path(__file__)])


def test_users_are_dealt_all_prompts_in_an_order_of_their_own() -> None:
    prompts = [str(i) for i in range(20)]

    def dealt(seed: int, user: int) -> list[str]:
        hand = Deck(prompts, seed).dealt_to(user)
        return [hand.next() for _ in range(40)]

    assert dealt(0, 1) == dealt(0, 1) and len({tuple(dealt(0, 1)), tuple(dealt(0, 2)), tuple(dealt(1, 1))}) == 3
    assert sorted(dealt(0, 1)[:20]) == sorted(dealt(0, 1)[20:]) == sorted(prompts)
    with pytest.raises(ValueError, match="no prompts"):
        Deck([], 0)


def test_the_tab_is_fed_with_the_page_of_requests(tmp_path: Path) -> None:
    web_ui = SimpleNamespace(app=Flask("a_page", root_path=str(tmp_path)), template_args={"mine": 1})
    known: list[dict[str, Any]] = []
    add_tab(web_ui, lambda: known[-1] if known else None)

    @web_ui.app.route("/stats/requests")
    def requests() -> dict[str, Any]:
        return {"stats": []}

    client = web_ui.app.test_client()
    assert client.get("/stats/requests").json == {"stats": [], "extended_stats": [{"key": "speculation", "data": []}]}
    known.append(summary([outcome(0.0, (0.5, 1), (0.6, 1), draft_tokens=4, accepted_draft_tokens=3)], 1.0))
    page = client.get("/stats/requests").json
    assert page is not None
    [line] = page["extended_stats"][0]["data"]
    assert line["acceptance_rate"] == 0.75 and line["ttft_p50"] == 500.0 and line["output_tokens"] == 2
    assert web_ui.template_args["mine"] == 1
    [structure] = web_ui.template_args["extended_tables"]
    assert {one["key"] for one in structure["structure"]} == set(FIGURES) == set(line)
    assert client.get("/speculation").json == json.loads(json.dumps(known[-1]))
