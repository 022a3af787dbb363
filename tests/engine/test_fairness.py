"""First come, first served: nobody is overtaken, and everybody gets a turn."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from swift_backend import SamplingParams
from tests.engine.scripted_drafts import load
from tests.engine.stepping import Stepping

OFF = SamplingParams(max_tokens=12, speculation="off", ignore_eos=True)
PROMPT = [5, 6, 7]


class Order(Stepping):
    """Notes in which order requests were let in, and in which they ended."""

    entered: list[str]

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            super().step()
            entered = [one.request.request_id for one in self.engine._running]
            self.entered = getattr(self, "entered", [])
            self.entered += sorted(set(entered) - set(self.entered), key=list(self.news).index)


def test_a_large_request_at_the_head_is_not_overtaken(tiny_model: Callable[[str], Path]) -> None:
    """256 slots, half of them taken; the large one needs all, the small ones behind it would fit at once."""
    one = Order(load(tiny_model("llama"), kv_cache_tokens=256).engine)
    one.submit("first", PROMPT, replace(OFF, max_tokens=100))
    one.submit("large", PROMPT * 30, replace(OFF, max_tokens=160))
    for n in range(5):
        one.submit(f"small{n}", PROMPT, OFF)
    one.step(20)
    assert one.entered == ["first"]
    assert not any(one.news[f"small{n}"] for n in range(5))
    one.step(82)
    assert one.entered == ["first", "large"]
    one.finish()
    assert one.entered == ["first", "large", *(f"small{n}" for n in range(5))]


def test_one_that_gives_up_at_the_head_lets_the_others_in(tiny_model: Callable[[str], Path]) -> None:
    one = Order(load(tiny_model("llama"), kv_cache_tokens=256).engine)
    one.submit("first", PROMPT, replace(OFF, max_tokens=100))
    one.submit("large", PROMPT * 30, replace(OFF, max_tokens=160))
    one.submit("small", PROMPT, OFF)
    one.step(3)
    one.engine.cancel("large")
    one.step()
    assert one.entered == ["first", "small"]
    one.finish()


def test_nobody_starves_with_three_times_more_requests_than_places(tiny_model: Callable[[str], Path]) -> None:
    """Four places, twelve requests and a new one for each that ends: all are let in in order, none waits for ever."""
    rng = random.Random(1)
    one = Order(load(tiny_model("llama"), kv_cache_tokens=512, max_running=4).engine)

    def submit(n: int) -> None:
        prompt = [rng.randrange(2, 64) for _ in range(rng.randrange(1, 60))]
        one.submit(str(n), prompt, replace(OFF, max_tokens=rng.randrange(3, 30)))

    for n in range(12):
        submit(n)
    count = 12
    while count < 40:
        one.step()
        ended = sum(news[-1].finished for news in one.news.values() if news)
        while count < min(40, 12 + ended):
            submit(count)
            count += 1
    one.finish()
    assert one.entered == [str(n) for n in range(40)]
    assert all(len(one.tokens(name)) == one.last(name).stats.output_tokens for name in one.news)
    assert {one.last(name).finish_reason for name in one.news} == {"length"}


def test_those_that_run_together_go_on_together(tiny_model: Callable[[str], Path]) -> None:
    """Eight requests and three tokens a step: after any step, nobody is more than two tokens ahead of another."""
    one = Stepping(load(tiny_model("llama"), max_step_tokens=3, prefix_cache=False).engine)
    for n in range(8):
        one.submit(str(n), [5 + n], OFF)
    while not all(one.tokens(str(n)) for n in range(8)):
        one.step()
    for _ in range(12):
        counts = [len(one.tokens(str(n))) for n in range(8)]
        one.step()
        after = [len(one.tokens(str(n))) for n in range(8)]
        assert sum(after) - sum(counts) == 3
    behind = min(after)
    assert max(after) - behind <= max(counts) - min(counts) + 1
    one.finish()


def test_a_long_prompt_comes_through_beside_a_full_step(tiny_model: Callable[[str], Path]) -> None:
    """Decoding requests that fill the step leave it a token each time: 100 tokens take no more than 100 steps."""
    one = Stepping(load(tiny_model("llama"), max_step_tokens=4, prefix_cache=False).engine)
    for n in range(4):
        one.submit(str(n), [5 + n], replace(OFF, max_tokens=250))
    one.step(4)
    one.submit("long", [5] * 100, replace(OFF, max_tokens=1))
    one.step(100)
    assert one.last("long").finish_reason == "length"
    for n in range(4):
        one.engine.cancel(str(n))
    one.finish()
