"""Limits hold inside an accepted run, and speculation allocates nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swift_backend import InvalidRequest, SamplingParams, SwiftLLM
from swift_backend.errors import ConfigError, Unavailable
from swift_backend.sequence import Output, Request

PROMPT = [9, 8, 7, 6, 5]
DRAFTING = {"speculation": "fixed", "confidence_threshold": 0.0}


@pytest.fixture(scope="module")
def llm(tiny_model: Callable[[str], Path]) -> SwiftLLM:
    return SwiftLLM(str(tiny_model("qwen3")), dtype="float32", debug=True, skip_ratio=0.4, kv_cache_tokens=512)


@pytest.fixture(scope="module")
def plain(llm: SwiftLLM) -> list[int]:
    return llm.generate([PROMPT], SamplingParams(max_tokens=30, speculation="off", ignore_eos=True))[0].token_ids


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 8])
def test_max_tokens_is_exact(llm: SwiftLLM, plain: list[int], max_tokens: int) -> None:
    """SWIFT B8, ik_llama.cpp PR#2358: an accepted run never overshoots."""
    out = llm.generate([PROMPT], SamplingParams(max_tokens=max_tokens, ignore_eos=True, **DRAFTING))[0]
    assert (out.token_ids, out.finish_reason) == (plain[:max_tokens], "length")
    assert out.stats.output_tokens == max_tokens
    assert max_tokens > 2 or out.stats.draft_tokens == 0


def test_every_token_as_a_stop_ends_the_answer_there(llm: SwiftLLM, plain: list[int]) -> None:
    """transformers#47912, koboldcpp#1276: a stop inside an accepted run ends text, ids and counts at once."""
    for token in sorted(set(plain)):
        params = SamplingParams(max_tokens=30, stop_token_ids=(token,), ignore_eos=True, **DRAFTING)  # type: ignore[arg-type]
        out = llm.generate([PROMPT], params)[0]
        assert out.token_ids == plain[: plain.index(token) + 1]
        assert out.finish_reason == "stop"
        assert out.text == "".join(f" w{t}" for t in plain[: plain.index(token)] if t != 1)
        assert out.stats.accepted_draft_tokens <= out.stats.output_tokens - 1


def test_generation_ends_with_the_context(llm: SwiftLLM) -> None:
    prompt = [5] * 250
    out = llm.generate([prompt], SamplingParams(max_tokens=100, ignore_eos=True, **DRAFTING))[0]
    assert (len(out.token_ids), out.finish_reason) == (6, "length")


@pytest.mark.parametrize("mode", ["off", "fixed"])
def test_speculation_allocates_no_cache_and_no_weights(tiny_model: Callable[[str], Path], mode: str) -> None:
    """The guide's claim of 0 MB; SWIFT B6 copies the whole cache: no operator allocates a hundredth of it."""
    llm = SwiftLLM(str(tiny_model("llama")), dtype="float32", skip_ratio=0.4, kv_cache_tokens=20_000)
    runner = llm.engine.runner
    layers, both, heads, size, float32 = 7, 2, 2, 8, 4
    assert runner.cache.num_bytes == layers * both * 20_000 * heads * size * float32
    before = [both.data_ptr() for both in runner.cache.slots], runner.decoder.num_bytes
    params = SamplingParams(max_tokens=16, speculation=mode, confidence_threshold=0.0, ignore_eos=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        out = llm.generate([PROMPT], params)[0]
    assert (out.stats.draft_tokens > 0) == (mode == "fixed")
    assert ([both.data_ptr() for both in runner.cache.slots], runner.decoder.num_bytes) == before
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert 0 < largest < runner.cache.slots[0].nbytes / 100


def test_no_slot_beyond_the_committed_ones_is_read(llm: SwiftLLM, plain: list[int]) -> None:
    """Whatever a rejected draft or a former owner left there: NaN would spread into every later token."""
    engine, cache = llm.engine, llm.engine.runner.cache

    def poison() -> None:
        committed = torch.zeros(cache.capacity, dtype=torch.bool)
        for sequence in engine._running:
            assert sequence.extent is not None
            committed[sequence.extent.start : sequence.extent.start + sequence.kv_len] = True
        for extent in (extent for extent in cache._extents if extent.kept):
            committed[extent.start : extent.start + extent.length] = True
        for both in cache.slots:
            both[~committed] = torch.nan

    news: list[Output] = []
    params = SamplingParams(max_tokens=30, ignore_eos=True, **DRAFTING)  # type: ignore[arg-type]
    engine.submit(Request("a", PROMPT, params, news.append))
    poison()
    while engine.step():
        poison()
    assert [t for out in news for t in out.token_ids] == plain
    assert news[-1].stats.draft_tokens > 0


def test_the_invariant_check_sees_a_forgotten_commit(llm: SwiftLLM) -> None:
    engine = llm.engine
    engine.submit(Request("a", PROMPT, SamplingParams(max_tokens=30, ignore_eos=True), lambda _: None))
    engine.step()
    [sequence] = engine._running
    assert sequence.extent is not None
    engine.check_invariants()
    sequence.extent.length -= 1
    with pytest.raises(AssertionError):
        engine.check_invariants()
    sequence.extent.length += 1
    engine.cancel("a")
    engine.step()
    assert engine.idle


def test_everybody_gets_a_turn_when_the_step_is_small(tiny_model: Callable[[str], Path], plain: list[int]) -> None:
    """Six drafting requests and four tokens a step: the first must not run to its end before the last begins."""
    engine = SwiftLLM(str(tiny_model("qwen3")), dtype="float32", skip_ratio=0.4, max_step_tokens=4, debug=True).engine
    news: dict[str, list[Output]] = {str(n): [] for n in range(6)}
    for name, outputs in news.items():
        params = SamplingParams(max_tokens=30, ignore_eos=True, **DRAFTING)  # type: ignore[arg-type]
        engine.submit(Request(name, PROMPT, params, outputs.append))
    for _ in range(20):
        engine.step()
    assert all(outputs for outputs in news.values())
    while engine.step():
        pass
    assert all([t for out in outputs for t in out.token_ids] == plain for outputs in news.values())


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], SamplingParams(), "input_ids must hold at least one token"),
        ([64], SamplingParams(), r"input_ids must be in \[0, 63\], got 64"),
        ([-1], SamplingParams(), r"input_ids must be in \[0, 63\], got -1"),
        ([5] * 256, SamplingParams(), "input_ids must hold at most 255 tokens, got 256"),
        ([5], SamplingParams(max_draft_tokens=16), r"max_draft_tokens must be in \[0, 15\], got 16"),
    ],
)
def test_what_can_never_run_is_refused(llm: SwiftLLM, prompt: list[int], params: SamplingParams, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate([prompt], params)
    assert llm.engine.idle


def test_what_never_fits_the_cache_is_refused_with_the_numbers(tiny_model: Callable[[str], Path]) -> None:
    small = SwiftLLM(str(tiny_model("qwen2")), dtype="float32", kv_cache_tokens=64)
    with pytest.raises(
        InvalidRequest,
        match=r"max_tokens must be in \[1, 39\], got 40: the server's cache holds 64 tokens, 25 are the prompt's",
    ):
        small.generate([[5] * 25], SamplingParams(max_tokens=40))
    assert len(small.generate([[5] * 24], SamplingParams(max_tokens=40, ignore_eos=True))[0].token_ids) == 40


def test_waiting_requests_get_their_turn_when_slots_are_free(llm: SwiftLLM, plain: list[int]) -> None:
    """512 slots hold a few of these at a time."""
    outputs = llm.generate([PROMPT] * 12, SamplingParams(max_tokens=30, ignore_eos=True, **DRAFTING))
    assert [out.token_ids for out in outputs] == [plain] * 12
    assert llm.engine.runner.cache.tokens_used == 0


def test_a_full_queue_refuses_at_once(tiny_model: Callable[[str], Path]) -> None:
    """One may run and two may wait, however many of them come before a step or after it."""
    options = {"kv_cache_tokens": 64, "max_waiting": 2, "max_running": 1}
    engine = SwiftLLM(str(tiny_model("qwen2")), dtype="float32", **options).engine
    for number in range(3):
        engine.submit(Request(str(number), [5], SamplingParams(max_tokens=2), lambda _: None))
    for _ in range(2):
        with pytest.raises(Unavailable, match="2 of 2"):
            engine.submit(Request("late", [5], SamplingParams(max_tokens=2), lambda _: None))
        engine.step()


def test_cancel_ends_one_request_and_leaves_the_others(llm: SwiftLLM, plain: list[int]) -> None:
    engine = llm.engine
    news: dict[str, list[Output]] = {"a": [], "b": [], "never": []}
    params = SamplingParams(max_tokens=30, ignore_eos=True, **DRAFTING)  # type: ignore[arg-type]
    for name in ("a", "b"):
        engine.submit(Request(name, PROMPT, params, news[name].append))
    for _ in range(3):
        engine.step()
    engine.cancel("a")
    engine.cancel("never")
    while engine.step():
        pass
    assert [out.finish_reason for out in news["a"]][-1] == "cancelled"
    assert sum(out.finished for out in news["a"]) == 1
    assert [t for out in news["b"] for t in out.token_ids] == plain
    assert engine.runner.cache.tokens_used == 0


def test_a_deadline_ends_a_request(llm: SwiftLLM) -> None:
    out = llm.generate([PROMPT], SamplingParams(max_tokens=250, timeout_ms=1, ignore_eos=True))[0]
    assert out.finish_reason == "timeout"
    assert llm.engine.idle


def test_leaving_a_stream_early_frees_its_slots(llm: SwiftLLM, plain: list[int]) -> None:
    for count, delta in enumerate(llm.stream(PROMPT, SamplingParams(max_tokens=30, ignore_eos=True))):
        assert delta.token_ids
        if count == 2:
            break
    assert llm.engine.idle
    assert llm.engine.runner.cache.tokens_used == 0


def test_a_stream_is_the_answer_in_pieces(llm: SwiftLLM, plain: list[int]) -> None:
    params = SamplingParams(max_tokens=30, ignore_eos=True, **DRAFTING)  # type: ignore[arg-type]
    whole = llm.generate([PROMPT], params)[0]
    deltas = list(llm.stream(PROMPT, params))
    assert [t for d in deltas for t in d.token_ids] == whole.token_ids == plain
    assert "".join(d.text for d in deltas) == whole.text
    assert [d.finish_reason for d in deltas][-1] == "length"
    assert not any(d.finish_reason for d in deltas[:-1])


def test_an_invalid_prompt_takes_the_whole_call_with_it(llm: SwiftLLM) -> None:
    with pytest.raises(InvalidRequest, match="input_ids"):
        llm.generate([PROMPT, []], SamplingParams(max_tokens=200, ignore_eos=True))
    llm.engine.step()
    assert llm.engine.idle


def test_an_exception_in_a_step_fails_every_open_request(tiny_model: Callable[[str], Path]) -> None:
    engine = SwiftLLM(str(tiny_model("qwen2")), dtype="float32", kv_cache_tokens=64).engine
    news: list[Output] = []
    for number in range(3):  # one runs, two wait: 64 slots
        engine.submit(Request(str(number), [5], SamplingParams(max_tokens=40, ignore_eos=True), news.append))
    engine.step()
    engine.runner.forward = None  # type: ignore[assignment, method-assign]
    with pytest.raises(TypeError):
        engine.run()
    last = [out for out in news if out.finished]
    assert sorted(out.request_id for out in last) == ["0", "1", "2"]
    assert all(out.finish_reason == "error" and "engine has failed (TypeError)" in str(out.error) for out in last)
    with pytest.raises(Unavailable, match="the engine has failed"):
        engine.submit(Request("late", [5], SamplingParams(max_tokens=2), news.append))


def test_closing_ends_every_request_as_cancelled(tiny_model: Callable[[str], Path]) -> None:
    engine = SwiftLLM(str(tiny_model("qwen2")), dtype="float32", kv_cache_tokens=64).engine
    news: list[Output] = []
    for number in range(3):
        engine.submit(Request(str(number), [5], SamplingParams(max_tokens=40, ignore_eos=True), news.append))
    engine.step()
    engine.close()
    engine.run()
    assert sorted((out.request_id, out.finish_reason) for out in news if out.finished) == [
        (str(n), "cancelled") for n in range(3)
    ]
    assert engine.idle


def test_what_is_no_prompt_is_refused(llm: SwiftLLM) -> None:
    for wrong in ([1, "two", 3], [[1], 2], [1.5], [None], [[5, "x"]]):
        with pytest.raises(InvalidRequest, match="prompts must be text or lists of token ids"):
            llm.generate(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="params must be one or 2, got 0"):
        llm.generate([[5], [6]], [])
    with pytest.raises(InvalidRequest, match="input_ids"):
        llm.stream([])
    assert llm.engine.idle


def test_waiting_requests_can_be_cancelled_and_time_out(tiny_model: Callable[[str], Path]) -> None:
    """The first takes the whole cache, the others wait."""
    engine = SwiftLLM(str(tiny_model("qwen3")), dtype="float32", kv_cache_tokens=256, debug=True).engine
    news: dict[str, list[Output]] = {name: [] for name in ("runs", "cancelled", "late")}
    long = SamplingParams(max_tokens=250, ignore_eos=True, speculation="off")
    for name, params in (("runs", long), ("cancelled", long), ("late", replace(long, timeout_ms=1))):
        engine.submit(Request(name, [5] * 5, params, news[name].append))
    engine.step()
    engine.cancel("cancelled")
    time.sleep(0.002)
    engine.step()
    assert [(out.token_ids, out.finish_reason) for out in news["cancelled"]] == [((), "cancelled")]
    assert [(out.token_ids, out.finish_reason) for out in news["late"]] == [((), "timeout")]
    assert not any(out.finished for out in news["runs"])


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown engine option 'max_runing'"):
        SwiftLLM(Path("anywhere"), max_runing=3)


@pytest.mark.parametrize(
    ("acceptance", "mode", "decided"),
    [
        ("coupled", "auto", True),
        ("coupled", "ngram", True),
        ("coupled", "skip", True),
        ("coupled", "fixed", False),
        ("rejection", "auto", False),
        ("rejection", "ngram", False),
    ],
)
def test_a_policy_decides_only_where_the_clock_cannot_change_tokens(
    tiny_model: Callable[[str], Path], acceptance: str, mode: str, decided: bool
) -> None:
    engine = SwiftLLM(tiny_model("qwen3"), "float32", acceptance=acceptance, kv_cache_tokens=64).engine
    engine.submit(Request("a", PROMPT, SamplingParams(max_tokens=8, ignore_eos=True, speculation=mode), print))
    engine.step()
    assert (engine._running[0].drafting is not None) == decided
