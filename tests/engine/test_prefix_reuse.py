"""A prompt that begins like an earlier one is answered the same, from fewer computed tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from swift_backend import SamplingParams
from swift_backend.engine import Engine
from tests.conftest import TINY_VOCABULARY
from tests.engine.scripted_drafts import ScriptedDrafter, answering, load
from tests.engine.stepping import Stepping, poison

Plain = Callable[[list[int], SamplingParams], list[int]]
FIXED = SamplingParams(max_tokens=12, speculation="fixed", confidence_threshold=0.0, ignore_eos=True)
OFF = replace(FIXED, speculation="off")
EVERY_KIND = [
    FIXED,
    replace(FIXED, temperature=1.0, seed=3),
    replace(FIXED, speculation="auto", temperature=0.8, top_p=0.9, seed=4),
    replace(FIXED, repetition_penalty=1.3, frequency_penalty=0.5, logprobs=2),
    replace(OFF, temperature=1.2, seed=5, presence_penalty=1.0, logprobs=0),
    replace(FIXED, speculation="auto", bad_words=("w9", "w11 w12"), min_tokens=4, ignore_eos=False),
]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(1000 * seed + length)
    return [rng.randrange(2, TINY_VOCABULARY) for _ in range(length)]


P = prompt_of(60)


def stepping(directory: Path, **options: object) -> Stepping:
    return Stepping(load(directory, **{"kv_cache_tokens": 1024, **options}).engine, poison)


@pytest.fixture(scope="module")
def without(tiny_model: Callable[[str], Path]) -> Stepping:
    return Stepping(load(tiny_model("llama"), prefix_cache=False).engine)


@pytest.fixture(scope="module")
def plain(without: Stepping) -> Plain:
    """What an engine without a prefix cache and without drafts answers."""

    def answer(prompt: list[int], params: SamplingParams) -> list[int]:
        without.answer("a", prompt, replace(params, speculation="off"))
        return without.tokens("a")

    return answer


@pytest.fixture
def cached(tiny_model: Callable[[str], Path]) -> Stepping:
    return stepping(tiny_model("llama"))


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("llama", {"kv_cache_tokens": 4000}),
        ("mistral", {"kv_cache_tokens": 700, "max_step_tokens": 24}),
        ("qwen3", {"kv_cache_tokens": 330, "max_step_tokens": 100}),
    ],
)
def test_conversations_are_the_same_with_and_without(
    tiny_model: Callable[[str], Path], architecture: str, options: dict[str, int]
) -> None:
    """Nine of them over three beginnings, arriving at any time; with room for all, for some, for hardly one."""
    rng = random.Random(2)
    without = Stepping(load(tiny_model(architecture), prefix_cache=False).engine)
    cached = stepping(tiny_model(architecture), **options)
    beginnings = [prompt_of(length) for length in (20, 35, 50)]
    prompts = [beginnings[n % 3] + prompt_of(rng.randrange(1, 9), n) for n in range(9)]
    for turn in range(2):
        kinds = {n: EVERY_KIND[(n + turn) % len(EVERY_KIND)] for n in range(9)}
        for n, params in kinds.items():
            without.submit(str(n), prompts[n], replace(params, speculation="off"))
        without.finish()
        for n, params in kinds.items():
            cached.submit(str(n), prompts[n], params)
            cached.step(rng.randrange(4))
        cached.finish()
        for n in kinds:
            name = str(n)
            assert cached.tokens(name) == without.tokens(name)
            assert cached.last(name).finish_reason == without.last(name).finish_reason
            assert logprobs(cached, name) == pytest.approx(logprobs(without, name), abs=1e-4)
            assert without.last(name).stats.reused_prompt_tokens == 0
            prompts[n] = prompts[n] + without.tokens(name) + prompt_of(rng.randrange(1, 9), n)
    assert without.engine.runner.cache.tokens_kept == 0


def logprobs(one: Stepping, name: str) -> list[float]:
    return [value.logprob for output in one.news[name] for value in output.logprobs]


@pytest.mark.parametrize(
    ("prompt", "reused"),
    [
        (P, 59),
        ([*P, 9, 8], 60),
        (P[:40], 39),
        ([*P[:-1], (P[-1] + 1) % 64], 59),
        ([(P[0] + 1) % 64, *P[1:]], 0),
        ([*P[:20], *P[:20]], 20),
        (P[:16], 0),
    ],
)
def test_where_prompts_part(cached: Stepping, without: Stepping, prompt: list[int], reused: int) -> None:
    """Identical, continued, a beginning, differing at the last, the first, some token; too short to share."""
    cached.answer("first", P, FIXED)
    for n, params in enumerate(EVERY_KIND):
        cached.submit(str(n), prompt, params)
        without.submit(str(n), prompt, replace(params, speculation="off"))
    cached.finish()
    without.finish()
    for name in map(str, range(len(EVERY_KIND))):
        assert cached.last(name).stats.reused_prompt_tokens == reused
        assert cached.tokens(name) == without.tokens(name)


def test_an_answer_is_part_of_what_is_known(cached: Stepping, plain: Plain) -> None:
    """The next turn of a conversation: all of it but the last token, which never went through the model."""
    for n, params in enumerate(EVERY_KIND):
        prompt = prompt_of(40, n)
        cached.answer("first", prompt, params)
        known = prompt + cached.tokens("first")
        assert cached.answer("then", [*known, 5, 6], FIXED).stats.reused_prompt_tokens == len(known) - 1
        assert cached.tokens("then") == plain([*known, 5, 6], FIXED)


def test_a_running_prompt_is_shared(tiny_model: Callable[[str], Path], plain: Plain) -> None:
    """As far as it is computed: 32 of its 60 tokens first, all later; its answer is not shared while it runs."""
    cached = stepping(tiny_model("llama"), max_step_tokens=32)
    cached.submit("first", P, FIXED)
    cached.step()
    assert cached.running("first").kv_len == 32
    cached.submit("early", [*P, 9], FIXED)
    cached.step(4)
    assert cached.tokens("first")
    cached.submit("late", P + cached.tokens("first")[:2] + [9], FIXED)
    cached.finish()
    assert [cached.last(name).stats.reused_prompt_tokens for name in ("first", "early", "late")] == [0, 32, 60]
    assert cached.tokens("first") == plain(P, FIXED)
    assert cached.tokens("early") == plain([*P, 9], FIXED)
    assert cached.tokens("late") == plain(P + cached.tokens("first")[:2] + [9], FIXED)


def test_a_source_that_is_cancelled_leaves_the_copy_alone(cached: Stepping, plain: Plain) -> None:
    cached.submit("first", P, FIXED)
    cached.step()
    cached.submit("then", P, FIXED)
    cached.step()
    cached.engine.cancel("first")
    cached.submit("third", prompt_of(100, 3), FIXED)
    cached.finish()
    assert cached.last("then").stats.reused_prompt_tokens == 59
    assert cached.tokens("then") == plain(P, FIXED)
    assert cached.tokens("third") == plain(prompt_of(100, 3), FIXED)


def test_a_prefill_that_was_cancelled_is_of_use(tiny_model: Callable[[str], Path], plain: Plain) -> None:
    cached = stepping(tiny_model("llama"), max_step_tokens=20)
    cached.submit("first", P, FIXED)
    cached.step(2)
    cached.engine.cancel("first")
    cached.finish()
    assert (cached.last("first").finish_reason, cached.tokens("first")) == ("cancelled", [])
    assert cached.answer("then", P, FIXED).stats.reused_prompt_tokens == 40
    assert cached.tokens("then") == plain(P, FIXED)


@pytest.mark.parametrize("wrong_at", [1, 3])
def test_rejected_drafts_are_not_known(
    cached: Stepping,
    plain: Plain,
    monkeypatch: pytest.MonkeyPatch,
    wrong_at: int,
) -> None:
    """vllm PR#18668: a prompt that goes on as the rejected draft did shares the committed tokens only."""
    answer = plain(P, FIXED)
    drafter = ScriptedDrafter(answering(answer, wrong_at))
    with monkeypatch.context() as patch:
        patch.setattr(cached.engine, "_drafter", drafter)
        cached.answer("first", P, FIXED)
    assert cached.tokens("first") == answer
    rejected = (answer[wrong_at] + 1) % 64
    assert drafter.made[0][1][wrong_at - 1] == rejected
    prompt = [*P, *answer[:wrong_at], rejected, 5]
    assert cached.answer("then", prompt, FIXED).stats.reused_prompt_tokens == 60 + wrong_at
    assert cached.tokens("then") == plain(prompt, FIXED)


def test_a_request_that_needs_all_of_the_cache_gets_it(tiny_model: Callable[[str], Path], plain: Plain) -> None:
    """256 slots: two kept texts of 80 are dropped for it, and what it leaves fills the cache."""
    cached, large = stepping(tiny_model("llama"), kv_cache_tokens=256), replace(FIXED, max_tokens=100)
    cache = cached.engine.runner.cache
    cached.answer("first", P, FIXED)
    cached.answer("second", prompt_of(61), FIXED)
    assert cache.tokens_kept == 160
    prompt = [*prompt_of(61), *prompt_of(90)]
    cached.submit("large", prompt, large)
    cached.step()
    assert (cache.tokens_kept, cache.tokens_used) == (0, 256)
    cached.finish()
    assert cached.tokens("large") == plain(prompt, large)
    assert cache.tokens_kept == 256


def test_the_least_recently_used_goes_first(tiny_model: Callable[[str], Path]) -> None:
    """Room for three texts of 80 slots: the first was used since, so a fourth drops the second."""
    cached = stepping(tiny_model("llama"), kv_cache_tokens=240)
    texts = [prompt_of(60, seed) for seed in range(4)]
    for n in (0, 1, 2, 0, 3):
        cached.answer(str(n), texts[n], FIXED)
    reused = {}
    for n in (1, 0):
        reused[n] = cached.answer("again", texts[n], replace(FIXED, max_tokens=4)).stats.reused_prompt_tokens
    assert reused == {1: 0, 0: 59}


def test_a_running_request_is_never_dropped(tiny_model: Callable[[str], Path], plain: Plain) -> None:
    """One that shares its text waits for room, and gets it when the other ends."""
    cached = stepping(tiny_model("llama"), kv_cache_tokens=128)
    for name in ("first", "then"):
        cached.submit(name, P, FIXED)
    cached.step(2)
    assert (len(cached.engine._running), len(cached.engine._lobby)) == (1, 1)
    cached.finish()
    assert cached.tokens("first") == cached.tokens("then") == plain(P, FIXED)


def kept(engine: Engine) -> tuple[int, int]:
    return engine.runner.cache.tokens_kept, engine.runner.cache.tokens_used


def test_switched_off_nothing_is_kept(tiny_model: Callable[[str], Path]) -> None:
    without = stepping(tiny_model("llama"), prefix_cache=False)
    answers = []
    for name in ("first", "then"):
        assert without.answer(name, P, FIXED).stats.reused_prompt_tokens == 0
        assert kept(without.engine) == (0, 0)
        answers.append(without.tokens(name))
    assert answers[0] == answers[1]


def test_nothing_is_kept_of_a_failed_request(cached: Stepping, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN logits: what else is wrong with it is not known."""
    forward = cached.engine.runner.forward
    cached.submit("first", P, FIXED)
    cached.step()
    with monkeypatch.context() as patch:
        patch.setattr(cached.engine.runner, "forward", lambda *args, **kwargs: forward(*args, **kwargs) * float("nan"))
        cached.finish()
    assert cached.last("first").finish_reason == "error"
    assert kept(cached.engine) == (0, 0)
    assert cached.answer("then", P, FIXED).stats.reused_prompt_tokens == 0
    assert kept(cached.engine) == (80, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_any_traffic(tiny_model: Callable[[str], Path], without: Stepping, seed: int) -> None:
    """Fifty requests over few texts, a quarter cancelled anywhere; a small cache, small steps, NaN behind everybody."""
    rng = random.Random(seed)
    texts = [prompt_of(70, n) for n in range(3)]
    cached = stepping(tiny_model("llama"), kv_cache_tokens=480, max_step_tokens=48, max_running=6)
    cancelled = set()
    for n in range(50):
        prompt = rng.choice(texts)[: rng.randrange(1, 71)] + prompt_of(rng.randrange(1, 5), rng.randrange(3))
        params = replace(rng.choice(EVERY_KIND), max_tokens=rng.randrange(4, 16))
        cached.submit(str(n), prompt, params)
        without.submit(str(n), prompt, replace(params, speculation="off"))
        cached.step(rng.randrange(3))
        if rng.random() < 0.25:
            cancelled.add(one := str(rng.randrange(n + 1)))
            cached.engine.cancel(one)
    cached.finish()
    without.finish()
    assert 5 < len(cancelled) < 20
    for name in map(str, range(50)):
        expected, found = without.tokens(name), cached.tokens(name)
        assert found == (expected[: len(found)] if name in cancelled else expected)
    assert sum(cached.last(str(n)).stats.reused_prompt_tokens for n in range(50)) > 300
