"""What the engine reports adds up to what its clients were told, whatever the traffic."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from swift_backend import SamplingParams
from swift_backend.engine import Engine
from swift_backend.metrics import StepReport
from swift_backend.text.stream import TextStream
from tests.engine.scripted_drafts import ScriptedDrafter, answering, load
from tests.engine.stepping import Stepping

FIXED = SamplingParams(max_tokens=20, speculation="fixed", confidence_threshold=0.0, ignore_eos=True)
OFF = replace(FIXED, speculation="off")
KINDS = [
    FIXED,
    OFF,
    replace(FIXED, speculation="auto", temperature=1.0, seed=3),
    replace(FIXED, temperature=0.9, seed=5, logprobs=1),
    replace(FIXED, stop_token_ids=tuple(range(2, 20)), ignore_eos=False),
    replace(FIXED, confidence_threshold=0.4, presence_penalty=0.6),
]
PROMPT = [30, 57, 37, 56, 61]


class Reports:
    """All reports of an engine, added up."""

    def __init__(self, engine: Engine) -> None:
        self.all: list[StepReport] = []
        engine._on_step = self.all.append

    def total(self, name: str) -> int:
        return sum(getattr(report, name) for report in self.all)

    def counted(self, name: str) -> Counter[str]:
        return sum((getattr(report, name) for report in self.all), Counter())

    def listed(self, name: str) -> list[int]:
        return [one for report in self.all for one in getattr(report, name)]


def test_mixed_traffic_adds_up(tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty requests, some cancelled, late or broken, in a small cache with small steps."""
    rng = random.Random(4)
    one = Stepping(load(tiny_model("llama"), kv_cache_tokens=400, max_step_tokens=40, max_running=5).engine)
    reports, cancelled = Reports(one.engine), set[str]()
    push, pushed = TextStream.push, count(1)

    def breaking(self: TextStream, token_id: int, **options: bool) -> tuple[str, bool]:
        if next(pushed) % 150 == 0:
            raise ValueError("broken")
        return push(self, token_id, **options)

    monkeypatch.setattr(TextStream, "push", breaking)
    beginnings = [[rng.randrange(2, 64) for _ in range(40)] for _ in range(2)]
    for n in range(60):
        prompt = [*rng.choice(beginnings)[: rng.randrange(1, 41)], rng.randrange(2, 64)]
        late = rng.random() < 0.1
        one.submit(str(n), prompt, replace(rng.choice(KINDS), timeout_ms=1 if late else None))
        one.step(rng.randrange(4))
        if rng.random() < 0.15:
            cancelled.add(str(n))
            one.engine.cancel(str(n))
    one.finish()
    last = [one.last(name) for name in one.news]
    outcomes = Counter(output.finish_reason for output in last)
    assert set(outcomes) == {"length", "stop", "cancelled", "timeout", "error"}
    assert Counter(ended.outcome for ended in reports.listed("ended")) == outcomes  # type: ignore[attr-defined]
    assert sum(ended.num_prompt_tokens for ended in reports.listed("ended")) == sum(  # type: ignore[attr-defined]
        output.num_prompt_tokens for output in last
    )
    assert reports.total("generated_tokens") == sum(len(one.tokens(name)) for name in one.news)
    begun = [output for output in last if one.tokens(output.request_id)]
    assert len(reports.listed("first_token_seconds")) == len(begun)
    assert reports.total("reused_prompt_tokens") == sum(output.stats.reused_prompt_tokens for output in begun) > 0
    assert reports.total("rounds") == sum(output.stats.rounds for output in last)
    drafted, accepted = reports.counted("draft_tokens"), reports.counted("accepted_draft_tokens")
    assert drafted == sum((Counter(output.stats.drafted) for output in last), Counter())
    assert accepted == sum((Counter(output.stats.accepted) for output in last), Counter())
    assert sum(drafted.values()) == sum(output.stats.draft_tokens for output in last)
    assert sum(accepted.values()) == sum(output.stats.accepted_draft_tokens for output in last)
    assert sum(reports.listed("accepted_per_round")) == sum(accepted.values()) > 0
    assert reports.total("draft_passes") == sum(output.stats.draft_passes for output in last)
    assert len(reports.listed("accepted_per_round")) < reports.total("rounds")
    assert gauges(reports.all[-1]) == (0, 0, 0, 400)
    assert {report.kv_tokens_capacity for report in reports.all} == {400}
    assert max(report.running for report in reports.all) == 5
    assert max(report.waiting for report in reports.all) > 0


def gauges(report: StepReport) -> tuple[int, int, int, int]:
    return report.running, report.waiting, report.kv_tokens_used, report.kv_tokens_capacity


def test_a_scripted_request_step_by_step(tiny_model: Callable[[str], Path]) -> None:
    """Drafts of five that are wrong from the third on, then the rest of the answer: every figure is known."""
    one = Stepping(load(tiny_model("llama"), prefix_cache=False).engine)
    one.answer("plain", PROMPT, replace(OFF, max_tokens=9))
    one.engine._drafter = ScriptedDrafter(answering(one.tokens("plain"), wrong_at=3))  # type: ignore[assignment]
    reports = Reports(one.engine)
    one.answer("a", PROMPT, replace(FIXED, max_tokens=9))
    assert one.tokens("a") == one.tokens("plain")
    assert [report.generated_tokens for report in reports.all] == [1, 3, 3, 2]
    assert [report.rounds for report in reports.all] == [0, 1, 1, 1]
    assert [report.draft_tokens["other"] for report in reports.all] == [0, 5, 4, 1]
    assert [report.accepted_per_round for report in reports.all] == [[], [2], [2], [1]]
    assert [len(report.first_token_seconds) for report in reports.all] == [1, 0, 0, 0]
    assert [gauges(report) for report in reports.all] == [(1, 0, 16, 8192)] * 3 + [(0, 0, 0, 8192)]
    [ended] = reports.all[-1].ended
    assert (ended.outcome, ended.num_prompt_tokens, ended.stats) == ("length", 5, one.last("a").stats)
    assert ended.stats.time_to_first_token == reports.all[0].first_token_seconds[0]


def test_only_committed_tokens_count_as_accepted(tiny_model: Callable[[str], Path]) -> None:
    """All five drafted tokens are the answer's own, and the second of them ends it."""
    one = Stepping(load(tiny_model("llama"), prefix_cache=False).engine)
    one.answer("plain", PROMPT, OFF)
    answer = one.tokens("plain")
    assert len(set(answer[:3])) == 3
    one.engine._drafter = ScriptedDrafter(answering(answer))  # type: ignore[assignment]
    reports = Reports(one.engine)
    one.answer("a", PROMPT, replace(FIXED, stop_token_ids=(answer[2],)))
    assert [report.generated_tokens for report in reports.all] == [1, 2]
    assert [report.draft_tokens["other"] for report in reports.all] == [0, 5]
    assert [report.accepted_per_round for report in reports.all] == [[], [2]]


def test_a_round_without_a_draft_is_a_round(tiny_model: Callable[[str], Path]) -> None:
    one = Stepping(load(tiny_model("llama")).engine)
    reports = Reports(one.engine)
    one.answer("a", PROMPT, OFF)
    assert (reports.total("rounds"), reports.total("generated_tokens")) == (19, 20)
    assert (reports.listed("accepted_per_round"), reports.counted("draft_tokens")) == ([], Counter())
    assert reports.all[-1].skipped_sublayers == 0


def test_skipped_sublayers_are_those_of_the_latest_draft_pass(tiny_model: Callable[[str], Path]) -> None:
    """Three of seven layers, from the first draft on, and still so while nobody drafts."""
    one = Stepping(load(tiny_model("llama")).engine)
    reports = Reports(one.engine)
    one.step()
    one.answer("a", PROMPT, FIXED)
    one.answer("b", PROMPT, OFF)
    assert {report.skipped_sublayers for report in reports.all[:2]} == {0}
    assert {report.skipped_sublayers for report in reports.all[2:]} == {6}


def test_what_a_prompt_reuses_is_counted_with_its_first_token(tiny_model: Callable[[str], Path]) -> None:
    """A request that was cancelled before it, like one that reused nothing, counts nothing."""
    one = Stepping(load(tiny_model("llama"), max_step_tokens=16).engine)
    reports, prompt = Reports(one.engine), PROMPT * 8
    one.answer("first", prompt, OFF)
    assert reports.total("reused_prompt_tokens") == 0
    one.submit("cancelled", [*prompt, *PROMPT * 6], OFF)
    one.step()
    one.engine.cancel("cancelled")
    one.finish()
    assert one.last("cancelled").stats.reused_prompt_tokens == 40
    assert reports.total("reused_prompt_tokens") == 0
    one.answer("then", prompt, OFF)
    assert reports.total("reused_prompt_tokens") == 39


def test_kept_prefixes_are_told_apart_from_used_slots(tiny_model: Callable[[str], Path]) -> None:
    one = Stepping(load(tiny_model("llama"), kv_cache_tokens=256).engine)
    reports = Reports(one.engine)
    one.answer("a", PROMPT * 8, OFF)
    assert (reports.all[-1].kv_tokens_used, reports.all[-1].kv_tokens_kept) == (0, 64)
    one.submit("b", PROMPT * 8, OFF)
    one.step()
    assert (reports.all[-1].kv_tokens_used, reports.all[-1].kv_tokens_kept) == (64, 64)
    one.finish()
