"""Requests that are held, ended from outside, or let run out: the others notice nothing, and each ends once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from swift_backend import SamplingParams
from swift_backend.engine import Engine
from swift_backend.errors import Unavailable
from tests.engine.scripted_drafts import load
from tests.engine.stepping import Stepping

OFF = SamplingParams(max_tokens=40, speculation="off", ignore_eos=True)
KINDS = {
    "off": OFF,
    "fixed": replace(OFF, speculation="fixed", confidence_threshold=0.0),
    "sampled": replace(OFF, speculation="auto", temperature=1.0, seed=3),
}
PROMPT = [5, 6, 7]
ENDLESS = replace(OFF, max_tokens=250)


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[[str], Path]) -> Engine:
    return load(tiny_model("llama"), prefix_cache=False).engine


@pytest.fixture
def own_engine(tiny_model: Callable[[str], Path]) -> Engine:
    """One that a test may close: a big enough context for requests that last."""
    return load(tiny_model("llama"), prefix_cache=False, max_running=4).engine


@contextmanager
def running(engine: Engine) -> Iterator[threading.Thread]:
    """The engine on its thread until the block ends."""
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        yield thread
    finally:
        engine.close()
        thread.join(10)
        assert not thread.is_alive()


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


@pytest.mark.parametrize("kind", KINDS)
def test_a_paused_request_stands_still_and_goes_on_exactly(engine: Engine, kind: str) -> None:
    one = Stepping(engine)
    one.answer("alone", PROMPT, KINDS[kind])
    one.submit("held", PROMPT, KINDS[kind])
    one.step(4)
    before = one.tokens("held")
    engine.pause("held", True)
    one.step(5)
    assert engine.step() is False
    assert one.tokens("held") == before
    assert 4 <= len(before) < 40
    engine.pause("held", False)
    one.finish()
    assert one.tokens("held") == one.tokens("alone")
    assert one.last("held").finish_reason == "length"


def test_others_go_on_at_full_speed(engine: Engine) -> None:
    """A token in every step; the paused one is not even in the pass."""
    one = Stepping(engine)
    for name in ("held", "free"):
        one.submit(name, PROMPT, OFF)
    one.step()
    engine.pause("held", True)
    one.step(20)
    assert [len(one.tokens(name)) for name in ("held", "free")] == [1, 21]
    engine.pause("held", False)
    one.finish()
    assert one.tokens("held") == one.tokens("free")


def test_a_request_may_be_held_in_the_middle_of_its_prompt(tiny_model: Callable[[str], Path]) -> None:
    engine = load(tiny_model("llama"), max_step_tokens=16, prefix_cache=False).engine
    one, prompt = Stepping(engine), [5 + n % 50 for n in range(60)]
    one.answer("alone", prompt, OFF)
    one.submit("held", prompt, OFF)
    one.step(2)
    engine.pause("held", True)
    one.step(3)
    assert one.running("held").kv_len == 32
    engine.pause("held", False)
    one.finish()
    assert one.tokens("held") == one.tokens("alone")


def test_the_last_word_about_a_pause_counts(engine: Engine) -> None:
    """Held and let go between two steps is not held; strangers and those that are gone are ignored."""
    one = Stepping(engine)
    one.submit("held", PROMPT, OFF)
    one.step()
    for name, paused in (("held", True), ("held", False), ("stranger", True)):
        engine.pause(name, paused)
    one.step()
    assert len(one.tokens("held")) == 2
    one.finish()
    engine.pause("held", True)
    one.answer("held", PROMPT, OFF)
    assert len(one.tokens("held")) == 40


@pytest.mark.parametrize("held", [False, True])
def test_cancelling_ends_a_request_in_the_next_step(engine: Engine, held: bool) -> None:
    one = Stepping(engine)
    one.submit("a", PROMPT, OFF)
    one.step(3)
    if held:
        engine.pause("a", True)
    engine.cancel("a")
    one.step()
    assert (one.last("a").finish_reason, len(one.tokens("a")), engine.idle) == ("cancelled", 3, True)
    assert engine.runner.cache.tokens_used == 0


def test_a_pause_does_not_free_a_place(tiny_model: Callable[[str], Path]) -> None:
    """The next in line waits for a place until the paused one has left."""
    one = Stepping(load(tiny_model("llama"), max_running=1, prefix_cache=False).engine)
    one.submit("held", PROMPT, OFF)
    one.submit("next", PROMPT, OFF)
    one.step()
    one.engine.pause("held", True)
    one.step(5)
    assert one.news["next"] == []
    one.engine.cancel("held")
    one.finish()
    assert len(one.tokens("next")) == 40


def test_a_deadline_ends_a_paused_request_though_nothing_else_runs(own_engine: Engine) -> None:
    """run() sleeps until then: neither for ever, nor round after round."""
    one, steps = Stepping(own_engine), list[float]()
    step = own_engine.step

    def counted() -> bool:
        steps.append(time.monotonic())
        return step()

    own_engine.step = counted  # type: ignore[method-assign]
    with running(own_engine):
        started = time.monotonic()
        one.submit("held", PROMPT, replace(ENDLESS, timeout_ms=400))
        until(lambda: one.news["held"])
        own_engine.pause("held", True)
        until(lambda: one.news["held"][-1].finished)
        took = time.monotonic() - started
    assert (one.last("held").finish_reason, 0.4 <= took < 2) == ("timeout", True)
    assert len([at for at in steps if started + 0.2 < at < started + 0.35]) <= 1


def test_a_deadline_ends_a_request_that_waits_while_the_one_before_it_is_held(
    tiny_model: Callable[[str], Path],
) -> None:
    own_engine = load(tiny_model("llama"), max_running=1).engine
    one = Stepping(own_engine)
    with running(own_engine):
        one.submit("held", PROMPT, ENDLESS)
        until(lambda: one.news["held"])
        own_engine.pause("held", True)
        one.submit("waits", PROMPT, replace(OFF, timeout_ms=100))
        until(lambda: one.news["waits"])
    assert [one.last(name).finish_reason for name in ("waits", "held")] == ["timeout", "cancelled"]
    assert one.tokens("waits") == []


@pytest.mark.parametrize(("default", "asked", "expected"), [(50, None, 0.05), (50, 9000, 9.0), (None, 70, 0.07)])
def test_a_requests_own_deadline_goes_before_the_servers(
    tiny_model: Callable[[str], Path], default: int | None, asked: int | None, expected: float
) -> None:
    one = Stepping(load(tiny_model("llama"), timeout_ms=default).engine)
    one.submit("a", PROMPT, replace(ENDLESS, timeout_ms=asked))
    one.step()
    sequence = one.running("a")
    assert sequence.deadline - sequence.request.arrived == pytest.approx(expected)
    one.engine.cancel("a")
    one.finish()


def test_without_any_deadline_there_is_none(engine: Engine) -> None:
    one = Stepping(engine)
    one.submit("a", PROMPT, OFF)
    one.step()
    assert one.running("a").deadline == float("inf")
    one.finish()


def test_the_servers_deadline_ends_those_that_generate_and_those_that_wait(tiny_model: Callable[[str], Path]) -> None:
    """What was generated by then is the beginning of the answer."""
    one = Stepping(load(tiny_model("llama"), timeout_ms=500, max_running=1, prefix_cache=False).engine)
    for name in ("runs", "waits"):
        one.submit(name, PROMPT, ENDLESS)
    one.step(3)
    time.sleep(0.5)
    one.step()
    assert [one.last(name).finish_reason for name in ("runs", "waits")] == ["timeout", "timeout"]
    assert (len(one.tokens("runs")), one.tokens("waits"), one.engine.idle) == (3, [], True)
    one.answer("later", PROMPT, replace(OFF, max_tokens=3, timeout_ms=9000))
    assert one.tokens("later") == one.tokens("runs")


def closing(engine: Engine, seconds: float) -> threading.Thread:
    engine.close(seconds)
    thread = threading.Thread(target=engine.run)
    thread.start()
    return thread


def test_a_drain_lets_open_requests_finish(own_engine: Engine) -> None:
    """Those in the mail too; new ones are refused."""
    one = Stepping(own_engine)
    one.submit("runs", PROMPT, OFF)
    one.step(2)
    for name in ("mail", *"abcd"):
        one.submit(name, PROMPT, OFF)
    own_engine.close(30)
    with pytest.raises(Unavailable, match="the server is shutting down"):
        one.submit("late", PROMPT, OFF)
    started = time.monotonic()
    own_engine.run()
    assert time.monotonic() - started < 10
    for name in ("runs", "mail", *"abcd"):
        assert (one.last(name).finish_reason, len(one.tokens(name))) == ("length", 40)
    assert own_engine.runner.cache.tokens_used == 0


def test_when_the_time_is_up_the_rest_is_cancelled(tiny_model: Callable[[str], Path]) -> None:
    """The paused one, and the one that waits for its slots; those that could finish have."""
    one = Stepping(load(tiny_model("llama"), prefix_cache=False, kv_cache_tokens=352).engine)
    one.submit("held", PROMPT, ENDLESS)
    one.step()
    one.engine.pause("held", True)
    for name, params in (("runs", OFF), ("next", OFF), ("large", ENDLESS)):
        one.submit(name, PROMPT, params)
    started = time.monotonic()
    closing(one.engine, 1.0).join(10)
    assert 1.0 <= time.monotonic() - started < 3
    reasons = [one.last(name).finish_reason for name in ("held", "runs", "next", "large")]
    assert reasons == ["cancelled", "length", "length", "cancelled"]
    assert (one.engine.idle, one.engine.runner.cache.tokens_used) == (True, 0)


@pytest.mark.parametrize(("first", "second"), [(0.2, 30.0), (30.0, 0.2)])
def test_a_second_close_can_only_shorten(own_engine: Engine, first: float, second: float) -> None:
    one = Stepping(own_engine)
    one.submit("held", PROMPT, ENDLESS)
    one.step()
    own_engine.pause("held", True)
    started = time.monotonic()
    thread = closing(own_engine, first)
    own_engine.close(second)
    thread.join(10)
    assert 0.15 <= time.monotonic() - started < 5
    assert one.last("held").finish_reason == "cancelled"


def test_resuming_while_draining_finishes(own_engine: Engine) -> None:
    one = Stepping(own_engine)
    one.submit("held", PROMPT, OFF)
    one.step()
    own_engine.pause("held", True)
    thread = closing(own_engine, 30)
    time.sleep(0.05)
    assert len(one.tokens("held")) == 1
    own_engine.pause("held", False)
    thread.join(10)
    assert (one.last("held").finish_reason, len(one.tokens("held"))) == ("length", 40)


def test_closing_at_once_cancels_all_even_unread_mail(own_engine: Engine) -> None:
    one = Stepping(own_engine)
    for name in "abcde":
        one.submit(name, PROMPT, OFF)
    one.step(2)
    one.submit("mail", PROMPT, OFF)
    own_engine.close()
    own_engine.run()
    assert {one.last(name).finish_reason for name in (*"abcde", "mail")} == {"cancelled"}
    assert [len(one.tokens(name)) for name in (*"abcde", "mail")] == [2, 2, 2, 2, 0, 0]
