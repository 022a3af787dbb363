"""An exception that is one request's affair ends that one; one that is the engine's ends all, each exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_backend import SamplingParams
from swift_backend.engine import Engine
from swift_backend.errors import EngineFailure, SwiftError, Unavailable
from swift_backend.metrics import StepReport
from swift_backend.processors import Processors
from swift_backend.scheduler import Work
from swift_backend.sequence import Output, Request
from swift_backend.speculation.draft import Draft
from swift_backend.text.stream import TextStream
from tests.engine.scripted_drafts import load
from tests.engine.stepping import Stepping

FIXED = SamplingParams(max_tokens=16, speculation="fixed", confidence_threshold=0.0, ignore_eos=True)
PROMPTS = {"a": [5, 6, 7], "b": [30, 57, 37, 56, 61], "c": [9, 8, 7, 6]}
# Each has processors, so that the wrong one's can break the whole batch's drawing; one is sampled.
PARAMS = {
    "a": replace(FIXED, repetition_penalty=1.1),
    "b": replace(FIXED, logit_bias=((7, 1.0),), stop=("w5 w5 w5",)),
    "c": replace(FIXED, presence_penalty=0.5, temperature=1.0, seed=4),
}


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[[str], Path]) -> Engine:
    return load(tiny_model("llama"), prefix_cache=False).engine


@pytest.fixture(scope="module")
def solo(engine: Engine) -> dict[str, list[int]]:
    one = Stepping(engine)
    for name, prompt in PROMPTS.items():
        one.answer(name, prompt, PARAMS[name])
    return {name: one.tokens(name) for name in PROMPTS}


class Wrong(Exception):
    """What a test lets go wrong."""


def raising_for_b(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Callable[[], Exception], calls: int = 0
) -> None:
    """Let the method raise for objects that were made from b's prompt or parameters, after so many good calls."""
    original, init = getattr(owner, name), getattr(owner, "__init__")  # noqa: B009
    ours: set[int] = set()
    keep: list[Any] = []

    def noted_init(self: Any, *args: Any) -> None:
        if any(one is PARAMS["b"] for one in args):
            ours.add(id(self))
            keep.append(self)
        if name == "__init__" and id(self) in ours:
            raise error()
        init(self, *args)

    left = [calls]

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) in ours:
            left[0] -= 1
            if left[0] < 0:
                raise error()
        return original(self, *args, **kwargs)

    monkeypatch.setattr(owner, "__init__", noted_init)
    if name != "__init__":
        monkeypatch.setattr(owner, name, broken)


def run_all(engine: Engine) -> Stepping:
    one = Stepping(engine)
    for name, prompt in PROMPTS.items():
        one.submit(name, prompt, PARAMS[name])
    one.finish()
    return one


def check_only_b_failed(one: Stepping, solo: dict[str, list[int]], kind: type[Exception] = Wrong) -> None:
    for name in ("a", "c"):
        assert (one.tokens(name), one.last(name).finish_reason) == (solo[name], "length")
    last = one.last("b")
    assert (last.finish_reason, last.token_ids, last.text) == ("error", (), "")
    assert type(last.error) is EngineFailure and type(last.error.__cause__) is kind
    assert str(last.error) == f"this request has failed ({kind.__name__}); the server's log says more"
    assert one.tokens("b") == solo["b"][: len(one.tokens("b"))]


@pytest.mark.parametrize(
    ("owner", "name", "calls", "answered"),
    [
        (TextStream, "__init__", 0, False),
        (Processors, "__init__", 0, False),
        (Processors, "seen", 0, False),
        (Processors, "banned", 3, True),
        (Processors, "append", 2, True),
        (TextStream, "push", 0, False),
        (TextStream, "push", 5, True),
        (TextStream, "flush", 0, True),
    ],
)
def test_what_breaks_in_one_request_ends_that_one(
    engine: Engine,
    solo: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    calls: int,
    answered: bool,
) -> None:
    """Its start, its part of drawing (the batch's, then its own), its detokenizer; then or later."""
    raising_for_b(monkeypatch, owner, name, lambda: Wrong("of one"), calls)
    one = run_all(engine)
    check_only_b_failed(one, solo)
    assert bool(one.tokens("b")) == answered
    monkeypatch.undo()
    assert Stepping(engine).answer("b", PROMPTS["b"], PARAMS["b"]).finish_reason == "length"


def test_a_runtime_error_of_one_request_is_no_engine_failure(
    engine: Engine, solo: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a failed allocation's is; torch raises RuntimeError for anything."""
    raising_for_b(monkeypatch, Processors, "banned", lambda: RuntimeError("shapes do not match"), 2)
    check_only_b_failed(run_all(engine), solo, RuntimeError)


@pytest.mark.parametrize("at", [0, 2])
def test_a_client_that_cannot_be_told_ends_its_own_request(engine: Engine, solo: dict[str, list[int]], at: int) -> None:
    """on_output raises from some delta on; the error is tried once, and nobody else notices."""
    one, told = Stepping(engine), list[Output]()

    def on_output(output: Output) -> None:
        told.append(output)
        if len(told) > at:
            raise Wrong

    for name in ("a", "c"):
        one.submit(name, PROMPTS[name], PARAMS[name])
    engine.submit(Request("b", PROMPTS["b"], PARAMS["b"], on_output))
    one.finish()
    for name in ("a", "c"):
        assert one.tokens(name) == solo[name]
    assert len(told) == at + 2
    assert [output.finish_reason for output in told] == [""] * (at + 1) + ["error"]
    assert isinstance(told[-1].error, EngineFailure) and isinstance(told[-1].error.__cause__, Wrong)


@pytest.mark.parametrize("reason", ["cancelled", "timeout"])
def test_a_flush_that_breaks_at_the_end_from_outside(
    engine: Engine, solo: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    raising_for_b(monkeypatch, TextStream, "flush", Wrong)
    one = Stepping(engine)
    for name, prompt in PROMPTS.items():
        one.submit(name, prompt, PARAMS[name])
    one.step(2)
    if reason == "cancelled":
        engine.cancel("b")
    else:
        one.running("b").deadline = 0.0
    one.finish()
    check_only_b_failed(one, solo)


def test_a_failed_request_is_counted_as_an_error(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[StepReport] = []
    monkeypatch.setattr(engine, "_on_step", reports.append)
    raising_for_b(monkeypatch, TextStream, "push", Wrong, 3)
    run_all(engine)
    ended = sorted(one.outcome for report in reports for one in report.ended)
    assert ended == ["error", "length", "length"]


def test_a_drafter_that_breaks_costs_only_its_drafts(
    engine: Engine, solo: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its third pass over three requests; a fourth that comes later drafts."""

    class Breaking:
        def __init__(self, drafter: Any) -> None:
            self.drafter, self.calls = drafter, 0

        def draft(self, plan: list[Work]) -> list[Draft]:
            drafts = self.drafter.draft(plan)
            self.calls += any(work.draft_budget for work in plan)
            if self.calls == 3:
                raise Wrong
            return drafts  # type: ignore[no-any-return]

    monkeypatch.setattr(engine, "_drafter", Breaking(engine._drafter))
    one = run_all(engine)
    assert {name: one.tokens(name) for name in PROMPTS} == solo
    assert all(0 < one.last(name).stats.draft_tokens <= 10 for name in PROMPTS)
    one.answer("a", PROMPTS["a"], PARAMS["a"])
    assert (one.tokens("a"), one.last("a").stats.draft_tokens > 10) == (solo["a"], True)


def no_memory() -> list[Exception]:
    return [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"),
    ]


class Doomed:
    """Two running requests, two that wait for room, and one in the mail, on an engine that is about to fail."""

    def __init__(self, directory: Path) -> None:
        self.reports: list[StepReport] = []
        self.engine = load(directory, max_running=2).engine
        self.engine._on_step = self.reports.append
        self.one = Stepping(self.engine)
        for name in ("r1", "r2", "w1", "w2"):
            self.one.submit(name, [5, 6, 7], PARAMS["a"])
        self.one.step(2)
        self.one.submit("mail", [5, 6, 7], PARAMS["b"])

    def check(self, error: Exception, names: tuple[str, ...] = ("r1", "r2", "w1", "w2", "mail")) -> None:
        with pytest.raises(type(error)) as caught:
            self.engine.run()
        assert caught.value is error
        for name in names:
            last = self.one.last(name)
            assert (last.finish_reason, last.token_ids) == ("error", ())
            assert type(last.error) is EngineFailure
            assert f"the engine has failed ({type(error).__name__})" in str(last.error)
        ended = [one.outcome for report in self.reports for one in report.ended]
        assert ended == ["error"] * len(names)
        assert (self.reports[-1].running, self.reports[-1].waiting, self.reports[-1].kv_tokens_used) == (0, 0, 0)
        with pytest.raises(Unavailable, match="the engine has failed"):
            self.one.submit("late", [5], FIXED)


@pytest.fixture
def doomed(tiny_model: Callable[[str], Path]) -> Doomed:
    return Doomed(tiny_model("llama"))


def raising(error: Exception) -> Callable[..., Any]:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise error

    return broken


@pytest.mark.parametrize("error", no_memory(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["forward", "draft", "judge", "push"])
def test_no_memory_ends_every_open_request_once(
    doomed: Doomed, monkeypatch: pytest.MonkeyPatch, error: Exception, where: str
) -> None:
    """In the full pass, in drafting, in drawing, in a request's own text: nothing that computes can be relied on."""
    places: dict[str, tuple[Any, str]] = {
        "forward": (doomed.engine.runner, "forward"),
        "draft": (doomed.engine._drafter, "draft"),
        "judge": (doomed.engine._verification, "_judge"),
        "push": (TextStream, "push"),
    }
    monkeypatch.setattr(*places[where], raising(error))
    doomed.check(error)


@pytest.mark.parametrize("error", no_memory(), ids=lambda error: type(error).__name__)
def test_no_memory_while_the_mail_is_read(doomed: Doomed, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The letters behind the one that was being read are open requests too."""
    doomed.one.submit("behind", [5, 6, 7], PARAMS["a"])
    raising_for_b(monkeypatch, TextStream, "__init__", lambda: error)
    doomed.check(error, ("r1", "r2", "w1", "w2", "mail", "behind"))


def test_a_client_that_cannot_be_told_keeps_it_from_nobody(doomed: Doomed, monkeypatch: pytest.MonkeyPatch) -> None:
    error, told = MemoryError(), list[Output]()

    def on_output(output: Output) -> None:
        told.append(output)
        raise Wrong

    doomed.engine._running[0].request = replace(doomed.engine._running[0].request, on_output=on_output)
    monkeypatch.setattr(doomed.engine.runner, "forward", raising(error))
    with pytest.raises(MemoryError):
        doomed.engine.run()
    assert [output.finish_reason for output in told] == ["error"]
    assert [doomed.one.last(name).finish_reason for name in ("r2", "w1", "w2", "mail")] == ["error"] * 4


def test_what_the_failing_step_had_done_is_reported(doomed: Doomed, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was cancelled in the same step, and its client was told so."""
    doomed.engine.cancel("w1")
    monkeypatch.setattr(doomed.engine.runner, "forward", raising(MemoryError()))
    with pytest.raises(MemoryError):
        doomed.engine.run()
    assert doomed.one.last("w1").finish_reason == "cancelled"
    ended = sorted(one.outcome for report in doomed.reports for one in report.ended)
    assert ended == ["cancelled", "error", "error", "error", "error"]


def test_any_other_exception_of_the_step_ends_the_engine_too(doomed: Doomed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The full pass is nobody's own; a state in the middle of a step may be anything."""
    error = ValueError("a bug")
    monkeypatch.setattr(doomed.engine.runner, "forward", raising(error))
    doomed.check(error)
    assert issubclass(EngineFailure, SwiftError)
