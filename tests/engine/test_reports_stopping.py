"""Public reports about where an answer ends (reference §7, cases 1–3, 5, 6 and 13): text, ids, logprobs, usage, stream.

Not here: 4 (reasoning_tokens > completion_tokens), since we report no counter of a part of an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from swift_backend import SamplingParams, SwiftLLM
from swift_backend.llm import Completion
from tests.engine.scripted_drafts import ScriptedDrafter, answering, load

PROMPT = [30, 57, 37, 56, 61]  # its plain answer begins with eleven different tokens, the third of them token 0
FIXED = SamplingParams(max_tokens=40, speculation="fixed", ignore_eos=True, logprobs=2)
OFF = replace(FIXED, speculation="off")
Drafting = Callable[..., ScriptedDrafter]


@pytest.fixture(scope="module")
def llm(tiny_model: Callable[[str], Path]) -> SwiftLLM:
    return load(tiny_model("llama"))


@pytest.fixture(scope="module")
def plain(llm: SwiftLLM) -> list[int]:
    ids = llm.generate([PROMPT], OFF)[0].token_ids
    assert len(set(ids[:11])) == 11 and 1 not in ids[:11]
    return ids


@pytest.fixture
def drafting(llm: SwiftLLM, plain: list[int], monkeypatch: pytest.MonkeyPatch) -> Drafting:
    """drafting(wrong_at=k) makes the engine draft the plain answer, with a wrong token at place k of every draft."""

    def install(answer: list[int] | None = None, wrong_at: int | None = None) -> ScriptedDrafter:
        drafter = ScriptedDrafter(answering(answer or plain, wrong_at))
        monkeypatch.setattr(llm.engine, "_drafter", drafter)
        return drafter

    return install


def words(ids: list[int]) -> str:
    return "".join(f" w{token}" for token in ids)


def answer(llm: SwiftLLM, params: SamplingParams) -> Completion:
    """The answer, after a check that all that is said about it ends at one place, whole and streamed."""
    [out] = llm.generate([PROMPT], params)
    deltas = list(llm.stream(PROMPT, params))
    assert [one.token_id for one in out.logprobs] == out.token_ids
    assert out.cumulative_logprob == pytest.approx(sum(one.logprob for one in out.logprobs))
    assert out.stats.output_tokens == len(out.token_ids)
    assert out.stats.accepted_draft_tokens <= min(out.stats.draft_tokens, len(out.token_ids) - 1)
    assert "".join(delta.text for delta in deltas) == out.text
    assert [token for delta in deltas for token in delta.token_ids] == out.token_ids
    assert [one for delta in deltas for one in delta.logprobs] == list(out.logprobs)
    assert [delta.finish_reason for delta in deltas] == [""] * (len(deltas) - 1) + [out.finish_reason]
    last = deltas[-1]
    assert (last.stats.output_tokens, last.cumulative_logprob) == (len(out.token_ids), out.cumulative_logprob)
    assert (last.stats.draft_tokens, last.stats.accepted_draft_tokens) == (
        out.stats.draft_tokens,
        out.stats.accepted_draft_tokens,
    )
    return out


@pytest.mark.parametrize("gamma", [4, 5])
@pytest.mark.parametrize("place", [1, 2, 3, 4, 5])
def test_eos_inside_an_accepted_block_ends_everything(
    llm: SwiftLLM, plain: list[int], drafting: Drafting, monkeypatch: pytest.MonkeyPatch, place: int, gamma: int
) -> None:
    """§7.1, transformers#47912; §7.2, koboldcpp#1276: the answer stops at the first EOS, drafted at any place.

    Place 5 of a draft of four is the full model's bonus token.
    """
    monkeypatch.setattr(llm.engine, "_eos_ids", frozenset({plain[place]}))
    drafter = drafting()
    out = answer(llm, replace(FIXED, ignore_eos=False, max_draft_tokens=gamma))
    assert drafter.lengths == [gamma] * 2  # one round, generated and streamed: the EOS was inside of it
    assert (out.token_ids, out.finish_reason) == (plain[: place + 1], "stop")
    assert out.text == words(plain[:place])
    assert out.stats.accepted_draft_tokens == min(place, gamma)


@pytest.mark.parametrize("place", [1, 2, 3, 4, 5])
def test_eos_behind_a_rejected_draft_is_not_seen(
    llm: SwiftLLM, plain: list[int], drafting: Drafting, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """§7.1, transformers#47912: a drafted EOS that the full model does not say ends nothing."""
    wrong = (plain[place] + 1) % 64
    assert wrong not in plain[:11]
    monkeypatch.setattr(llm.engine, "_eos_ids", frozenset({wrong}))
    drafting(wrong_at=place)
    out = answer(llm, replace(FIXED, ignore_eos=False, max_tokens=8))
    assert (out.token_ids, out.finish_reason) == (plain[:8], "length")


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("place", [1, 2, 3, 4, 5])
def test_stop_token_inside_an_accepted_block_ends_everything(
    llm: SwiftLLM, plain: list[int], drafting: Drafting, place: int, include: bool
) -> None:
    """§7.1, transformers#47912: the same for the request's own stop tokens."""
    drafting()
    params = replace(FIXED, stop_token_ids=(plain[place],), include_stop_str_in_output=include)
    out = answer(llm, params)
    assert (out.token_ids, out.finish_reason) == (plain[: place + 1], "stop")
    assert out.text == words(plain[: place + 1 if include else place])


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("place", [1, 2, 3, 4, 5])
def test_stop_string_that_completes_inside_a_block_ends_everything(
    llm: SwiftLLM, plain: list[int], drafting: Drafting, place: int, include: bool
) -> None:
    """§7.3, vllm PR#47616: ids, logprobs and usage end with the token that completes the stop string."""
    drafter = drafting()
    stop = words(plain[place - 1 : place + 1])
    out = answer(llm, replace(FIXED, stop=(stop,), include_stop_str_in_output=include))
    assert drafter.lengths == [5, 5]
    assert (out.token_ids, out.finish_reason) == (plain[: place + 1], "stop")
    assert out.text == words(plain[: place + 1 if include else place - 1])


def test_stop_string_of_a_repeated_word_ends_with_its_third(
    llm: SwiftLLM, drafting: Drafting, plain: list[int]
) -> None:
    """§7.3, vllm PR#47616: the report's own case, stop=[" ha ha ha"] in an answer of nothing but "ha"."""
    ha = [7] * 40
    params = replace(FIXED, logit_bias=((7, 100.0),), stop=(words(ha[:3]),))
    drafting(ha)
    assert answer(llm, replace(params, stop=())).token_ids == ha
    out = answer(llm, params)
    assert (out.token_ids, out.text, out.finish_reason) == (ha[:3], "", "stop")
    out = answer(llm, replace(params, stop=(f"{words(ha[:2])} w9", words(ha[:5])), include_stop_str_in_output=True))
    assert (out.token_ids, out.text, out.finish_reason) == (ha[:5], words(ha[:5]), "stop")


@pytest.mark.parametrize("gamma", [4, 5])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 8])
def test_max_tokens_is_delivered_exactly_and_is_what_usage_says(
    llm: SwiftLLM, plain: list[int], drafting: Drafting, max_tokens: int, gamma: int
) -> None:
    """§7.5, ik_llama.cpp PR#2358; §7.6, SWIFT B8: neither fewer nor more, and a last token needs no draft."""
    drafter = drafting()
    out = answer(llm, replace(FIXED, max_tokens=max_tokens, max_draft_tokens=gamma))
    assert (out.token_ids, out.finish_reason) == (plain[:max_tokens], "length")
    assert out.text == words(plain[:max_tokens])
    expected = {1: [], 2: [], 3: [1], 8: {4: [4, 1], 5: [5]}[gamma]}[max_tokens]
    assert drafter.lengths == expected * 2


def test_the_earliest_of_budget_and_stop_wins(llm: SwiftLLM, plain: list[int], drafting: Drafting) -> None:
    """§7.5, ik_llama.cpp PR#2358: exactly min(budget, stop) tokens when both fall into one block."""
    drafting()
    for max_tokens, length, reason in ((3, 3, "length"), (4, 4, "stop"), (6, 4, "stop")):
        out = answer(llm, replace(FIXED, max_tokens=max_tokens, stop_token_ids=(plain[3],)))
        assert (out.token_ids, out.finish_reason) == (plain[:length], reason)


def test_eos_drafted_before_min_tokens_is_masked_in_its_own_row(
    llm: SwiftLLM, plain: list[int], drafting: Drafting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.13, vLLM's MinTokens with drafts: EOS drafted at place 3 of a block, min_tokens 10."""
    eos = plain[3]
    monkeypatch.setattr(llm.engine, "_eos_ids", frozenset({eos}))
    off = answer(llm, replace(OFF, ignore_eos=False, min_tokens=10))
    assert off.token_ids[:3] == plain[:3] and eos not in off.token_ids[:10] and len(off.token_ids) >= 10
    drafter = drafting()
    out = answer(llm, replace(FIXED, ignore_eos=False, min_tokens=10))
    assert drafter.made[0][1][2] == eos
    assert (out.token_ids, out.text, out.finish_reason) == (off.token_ids, off.text, off.finish_reason)
    drafting(off.token_ids)
    out = answer(llm, replace(FIXED, ignore_eos=False, min_tokens=10))
    assert (out.token_ids, out.finish_reason) == (off.token_ids, off.finish_reason)


@pytest.mark.parametrize("min_tokens", [3, 4, 5])
def test_eos_is_free_again_from_min_tokens_on_inside_one_block(
    llm: SwiftLLM, plain: list[int], drafting: Drafting, monkeypatch: pytest.MonkeyPatch, min_tokens: int
) -> None:
    """§7.13, vLLM's MinTokens with drafts: the row where the minimum is reached may stop, the row before may not."""
    monkeypatch.setattr(llm.engine, "_eos_ids", frozenset({plain[3]}))
    drafting()
    params = replace(FIXED, ignore_eos=False, min_tokens=min_tokens, max_tokens=6)
    out = answer(llm, params)
    if min_tokens == 3:
        assert (out.token_ids, out.finish_reason) == (plain[:4], "stop")
    else:
        assert out.token_ids[:3] == plain[:3] and out.token_ids[3] != plain[3]
    assert out.token_ids == answer(llm, replace(params, speculation="off")).token_ids
