"""Limits hold inside an accepted run, and speculation allocates nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from swift_backend import InvalidRequest, SamplingParams, SwiftLLM
from swift_backend.errors import Unavailable
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


def test_speculation_allocates_no_cache_and_no_weights(tiny_model: Callable[[str], Path]) -> None:
    """The guide's claim of 0 MB; SWIFT B6 copies the whole cache."""
    sizes = {}
    for mode in ("off", "fixed"):
        llm = SwiftLLM(str(tiny_model("llama")), dtype="float32", skip_ratio=0.4, kv_cache_tokens=256)
        runner = llm.engine.runner
        before = {t.data_ptr() for t in (*runner.cache.keys, *runner.cache.values)}
        out = llm.generate(
            [PROMPT], SamplingParams(max_tokens=40, speculation=mode, confidence_threshold=0.0, ignore_eos=True)
        )[0]
        assert (out.stats.draft_tokens > 0) == (mode == "fixed")
        assert {t.data_ptr() for t in (*runner.cache.keys, *runner.cache.values)} == before
        sizes[mode] = (runner.cache.num_bytes, runner.decoder.num_bytes)
    assert sizes["off"] == sizes["fixed"]
    assert sizes["off"][0] == 7 * 2 * 256 * 2 * 8 * 4  # layers, K and V, slots, kv heads, head size, bytes


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], SamplingParams(), "input_ids must hold at least one token"),
        ([64], SamplingParams(), r"input_ids must be in \[0, 63\], got 64"),
        ([-1], SamplingParams(), r"input_ids must be in \[0, 63\], got -1"),
        ([5] * 256, SamplingParams(), "input_ids must hold at most 255 tokens, got 256"),
        ([5], SamplingParams(max_draft_tokens=6), r"max_draft_tokens must be in \[0, 5\], got 6"),
    ],
)
def test_what_can_never_run_is_refused(llm: SwiftLLM, prompt: list[int], params: SamplingParams, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate([prompt], params)
    assert llm.engine.idle


def test_what_never_fits_the_cache_is_refused_with_the_numbers(tiny_model: Callable[[str], Path]) -> None:
    small = SwiftLLM(str(tiny_model("qwen2")), dtype="float32", kv_cache_tokens=64)
    with pytest.raises(InvalidRequest, match="need 65 cache slots, the server has 64"):
        small.generate([[5] * 25], SamplingParams(max_tokens=40))
    assert len(small.generate([[5] * 24], SamplingParams(max_tokens=40, ignore_eos=True))[0].token_ids) == 40


def test_waiting_requests_get_their_turn_when_slots_are_free(llm: SwiftLLM, plain: list[int]) -> None:
    """512 slots hold a few of these at a time."""
    outputs = llm.generate([PROMPT] * 12, SamplingParams(max_tokens=30, ignore_eos=True, **DRAFTING))
    assert [out.token_ids for out in outputs] == [plain] * 12
    assert llm.engine.runner.cache.tokens_used == 0


def test_a_full_queue_refuses_at_once(tiny_model: Callable[[str], Path]) -> None:
    engine = SwiftLLM(str(tiny_model("qwen2")), dtype="float32", kv_cache_tokens=64, max_waiting=2).engine
    for number in range(2):
        engine.submit(Request(str(number), [5], SamplingParams(max_tokens=2), lambda _: None))
    with pytest.raises(Unavailable, match="2 of 2"):
        engine.submit(Request("late", [5], SamplingParams(max_tokens=2), lambda _: None))


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
    assert all(out.finish_reason == "error" and "engine failed" in str(out.error) for out in last)
    with pytest.raises(Unavailable):
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
