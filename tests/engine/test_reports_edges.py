"""Public reports about requests and moments at the edge (reference §7, case 7, and the line "Plus from §2" below it).

The rest of that line is about sampling (a vocabulary below ten, one token left, p == q): test_reports_sampling.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_backend import InvalidRequest, SamplingParams, SwiftLLM
from swift_backend.batch import RowGroup
from swift_backend.errors import EngineFailure
from swift_backend.scheduler import Work
from swift_backend.sequence import Output, Request
from swift_backend.speculation.draft import Draft
from swift_backend.speculation.layer_set import LayerSet
from tests.conftest import TINY_VOCABULARY
from tests.engine.scripted_drafts import ScriptedDrafter, answering, load

Greedy = Callable[[Path, list[int], int], list[int]]
PROMPT, OTHER = [30, 57, 37, 56, 61], [9, 8, 7, 6]  # the answer to PROMPT begins with eleven different tokens
CONTEXT = 256
FIXED = SamplingParams(max_tokens=30, speculation="fixed", confidence_threshold=0.0, ignore_eos=True)
OFF = replace(FIXED, speculation="off")
RULES = ["coupled", "rejection"]


@pytest.fixture(scope="module")
def llm(tiny_model: Callable[[str], Path]) -> SwiftLLM:
    return load(tiny_model("llama"))


@pytest.fixture(scope="module")
def plain(llm: SwiftLLM) -> list[int]:
    return llm.generate([PROMPT], OFF)[0].token_ids


@pytest.fixture(scope="module")
def other_plain(llm: SwiftLLM) -> list[int]:
    return llm.generate([OTHER], OFF)[0].token_ids


def run(llm: SwiftLLM, **requests: tuple[list[int], SamplingParams]) -> dict[str, list[Output]]:
    """What each request, by its id, is told until the engine has nothing left to do."""
    news: dict[str, list[Output]] = {name: [] for name in requests}
    for name, (prompt, params) in requests.items():
        llm.engine.submit(Request(name, prompt, params, news[name].append))
    while llm.engine.step():
        pass
    assert llm.engine.idle and llm.engine.runner.cache.tokens_used == 0
    assert [sum(output.finished for output in outputs) for outputs in news.values()] == [1] * len(news)
    return news


def ids(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.parametrize("asked", [16, 1000, 2**31 - 1])
def test_a_draft_length_above_the_servers_limit_is_refused(llm: SwiftLLM, asked: int) -> None:
    """§7.7, tensorrtllm_backend#473: num_draft_tokens beyond the engine's maximum killed the server."""
    with pytest.raises(InvalidRequest, match=rf"^max_draft_tokens must be in \[0, 15\], got {asked}$") as caught:
        llm.generate([PROMPT], replace(FIXED, max_draft_tokens=asked))
    assert caught.value.field == "max_draft_tokens"
    assert llm.engine.idle


def test_every_draft_length_up_to_the_servers_limit_works(
    tiny_model: Callable[[str], Path], plain: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.7, tensorrtllm_backend#473: 56 is the report's limit; no draft is longer than what was asked for."""
    llm = load(tiny_model("llama"), max_draft_tokens=56)
    for asked in (0, 1, 9, 28, 56):
        drafter = ScriptedDrafter(answering(plain))
        monkeypatch.setattr(llm.engine, "_drafter", drafter)
        out = llm.generate([PROMPT], replace(FIXED, max_draft_tokens=asked))[0]
        assert out.token_ids == plain
        assert max(drafter.lengths, default=0) == min(asked, 28)


@pytest.mark.parametrize("wrong_at", [None, 1, 2, 3])
@pytest.mark.parametrize("acceptance", RULES)
def test_token_zero_is_a_token_like_any_other(
    tiny_model: Callable[[str], Path],
    plain: list[int],
    acceptance: str,
    wrong_at: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """§2, SWIFT B2 and B3: id 0 as argmax, drafted, recovered and bonus; no pad stands for it."""
    assert plain[2] == 0
    llm = load(tiny_model("llama"), acceptance=acceptance)
    monkeypatch.setattr(llm.engine, "_drafter", ScriptedDrafter(answering(plain, wrong_at)))
    out = llm.generate([PROMPT], FIXED)[0]
    assert out.token_ids == plain
    assert out.text == "".join(f" w{token}" for token in plain if token != 1)
    if wrong_at is None:
        assert out.stats.acceptance_rate == 1.0  # the drafted zeros too
    zeros = llm.generate([PROMPT], replace(FIXED, logit_bias=((0, 100.0),), stop_token_ids=(1,)))[0]
    assert (zeros.token_ids, zeros.text) == ([0] * 30, " w0" * 30)
    stopped = llm.generate([PROMPT], replace(FIXED, stop_token_ids=(0,)))[0]
    assert (stopped.token_ids, stopped.finish_reason) == (plain[:3], "stop")


def test_drafts_of_zeros_are_no_padding(llm: SwiftLLM, plain: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """§2, SWIFT B2: zeros behind a right token are rejected like any wrong token, accepted where they are right."""
    monkeypatch.setattr(llm.engine, "_drafter", ScriptedDrafter(lambda s: [*answering(plain)(s)[:1], 0, 0, 0, 0]))
    out = llm.generate([PROMPT], FIXED)[0]
    assert out.token_ids == plain
    assert out.stats.accepted_draft_tokens >= out.stats.rounds - 1


@contextmanager
def broken_rows(llm: SwiftLLM, when: Callable[[RowGroup, bool], int | None]) -> Iterator[list[int]]:
    """when(group, drafting) is the row of a group's logits that becomes NaN; yields the rows that did."""
    runner, original, broken = llm.engine.runner, llm.engine.runner.forward, list[int]()

    def forward(
        groups: Seq[RowGroup], kept: Seq[int] | None = None, observe: Any = None, head: Any = None
    ) -> torch.Tensor:
        logits, start = original(groups, kept, observe).clone(), 0
        for group in groups:
            row = when(group, kept is not None)
            if row is not None and row < group.num_logits:
                logits[start + row] = torch.nan
                broken.append(row)
            start += group.num_logits
        return logits

    runner.forward = forward  # type: ignore[method-assign]
    yield broken
    runner.forward = original  # type: ignore[method-assign]


@pytest.mark.parametrize("row", [0, 1, 3, 5])
@pytest.mark.parametrize("acceptance", RULES)
def test_nan_logits_in_a_verify_pass_end_that_request_alone(
    tiny_model: Callable[[str], Path],
    plain: list[int],
    other_plain: list[int],
    acceptance: str,
    row: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """§2, NaN logits: what was certain before them is delivered, then an error; the neighbour goes on."""
    llm = load(tiny_model("llama"), acceptance=acceptance)
    by_prompt = {tuple(PROMPT): answering(plain), tuple(OTHER): answering(other_plain, 3)}
    drafter = ScriptedDrafter(lambda sequence: by_prompt[tuple(sequence.request.prompt_ids)](sequence))
    monkeypatch.setattr(llm.engine, "_drafter", drafter)
    second_round = len(PROMPT) + 6  # the first accepts five and a bonus token

    with broken_rows(
        llm, lambda group, _: row if group.first == second_round and group.token_ids[0] == plain[6] else None
    ):
        news = run(llm, a=(PROMPT, FIXED), b=(OTHER, FIXED))
    assert ids(news["a"]) == plain[: 7 + row]
    last = news["a"][-1]
    assert last.finish_reason == "error" and isinstance(last.error, EngineFailure)
    assert f"position {len(PROMPT) + 7 + row} " in str(last.error)
    assert last.stats.accepted_draft_tokens == 5 + row
    assert ids(news["b"]) == other_plain
    assert (news["b"][-1].finish_reason, news["b"][-1].error) == ("length", None)
    assert llm.generate([PROMPT], FIXED)[0].token_ids == plain


def test_nan_logits_behind_a_stop_or_a_rejected_draft_do_not_matter(
    llm: SwiftLLM, plain: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """§2, NaN logits: rows that no token is taken from are nobody's failure."""
    with broken_rows(llm, lambda group, _: 3 if group.num_logits > 3 else None) as broken:
        monkeypatch.setattr(llm.engine, "_drafter", ScriptedDrafter(answering(plain, 3)))
        assert llm.generate([PROMPT], FIXED)[0].token_ids == plain
        monkeypatch.setattr(llm.engine, "_drafter", ScriptedDrafter(answering(plain)))
        assert llm.generate([PROMPT], replace(FIXED, stop_token_ids=(plain[3],)))[0].token_ids == plain[:4]
    assert len(broken) > 5


def test_nan_logits_of_a_prompt_are_an_engine_failure(llm: SwiftLLM, plain: list[int]) -> None:
    """§2, NaN logits: with nothing to deliver, SwiftLLM raises it."""
    with (
        broken_rows(llm, lambda group, drafting: None if drafting else 0),
        pytest.raises(EngineFailure, match="logits at position 5 are no finite numbers"),
    ):
        llm.generate([PROMPT], FIXED)
    assert llm.generate([PROMPT], FIXED)[0].token_ids == plain


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_logits_in_a_draft_pass_only_end_the_draft(llm: SwiftLLM, temperature: float) -> None:
    """§2, NaN logits: drafts are guesses; the answer is the full model's."""
    params = replace(FIXED, temperature=temperature, seed=5)
    off = llm.generate([PROMPT], replace(params, speculation="off"))[0].token_ids
    with broken_rows(llm, lambda group, drafting: 0 if drafting and group.first % 3 == 0 else None) as broken:
        out = llm.generate([PROMPT], params)[0]
    assert out.token_ids == off
    assert len(broken) > 3 and out.stats.draft_tokens > 0
    with broken_rows(llm, lambda group, drafting: 0 if drafting else None):
        assert llm.generate([PROMPT], params)[0].stats.draft_tokens == 0


@pytest.mark.parametrize("speculation", ["off", "fixed"])
def test_a_prompt_of_one_token(
    tiny_model: Callable[[str], Path], transformers_greedy: Greedy, speculation: str
) -> None:
    """§2: prompt of length 1, token 0 among them."""
    directory = tiny_model("llama")
    params = replace(FIXED, speculation=speculation, ignore_eos=False)
    for token in (0, 5, TINY_VOCABULARY - 1):
        out = load(directory).generate([[token]], params)[0]
        assert (out.token_ids, out.num_prompt_tokens) == (transformers_greedy(directory, [token], 30), 1)


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, 3 * CONTEXT])
def test_a_prompt_longer_than_the_context_is_refused(llm: SwiftLLM, length: int) -> None:
    """§2: with the numbers, before anything runs; one token fewer leaves room for one answer token."""
    with pytest.raises(InvalidRequest, match=f"^input_ids must hold at most {CONTEXT - 1} tokens, got {length}$"):
        llm.generate([[5] * length], FIXED)
    assert llm.engine.idle
    out = llm.generate([[5] * (CONTEXT - 1)], FIXED)[0]
    assert (len(out.token_ids), out.finish_reason, out.stats.draft_tokens) == (1, "length", 0)


@pytest.mark.parametrize("wrong_at", [None, 2])
def test_cancelling_between_draft_and_verify(
    llm: SwiftLLM, plain: list[int], other_plain: list[int], wrong_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§2: the round is finished, then the request is; one terminal output, slots free, the neighbour unharmed."""
    drafter = ScriptedDrafter(lambda s: answering(plain if s.request.request_id == "a" else other_plain, wrong_at)(s))
    original = drafter.draft

    def draft(plan: Seq[Work]) -> list[Draft]:
        drafts = original(plan)
        if any(s.request.request_id == "a" and s.num_output_tokens >= 7 for s in (work.sequence for work in plan)):
            llm.engine.cancel("a")
        return drafts

    monkeypatch.setattr(drafter, "draft", draft)
    monkeypatch.setattr(llm.engine, "_drafter", drafter)
    news = run(llm, a=(PROMPT, FIXED), b=(OTHER, FIXED))
    assert ids(news["a"]) == plain[: 13 if wrong_at is None else 9]
    assert (news["a"][-1].finish_reason, news["a"][-1].token_ids) == ("cancelled", ())
    assert ids(news["b"]) == other_plain


@pytest.mark.parametrize("acceptance", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_another_layer_set_between_draft_and_verify(
    tiny_model: Callable[[str], Path], acceptance: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§2: the set a draft was made with is no input of verification, however often it changes."""
    llm = load(tiny_model("llama"), acceptance=acceptance)
    original = llm.engine._drafter.draft
    sets = [LayerSet.skipping(7, layers) for layers in ((2,), (3, 4), (), (2, 3, 4))]
    seen: list[tuple[int, ...]] = []

    def draft(plan: Seq[Work]) -> list[Draft]:
        drafts = original(plan)
        for sequence in (work.sequence for work in plan):
            seen.append(sequence.layer_set.skipped_layers if sequence.layer_set else ())
            sequence.layer_set = sets[len(seen) % 4]
        return drafts

    params = replace(FIXED, temperature=temperature, seed=9)
    off = llm.generate([PROMPT], replace(params, speculation="off"))[0].token_ids
    monkeypatch.setattr(llm.engine._drafter, "draft", draft)
    out = llm.generate([PROMPT], params)[0]
    if acceptance == "coupled" or temperature == 0:
        assert out.token_ids == off
    else:
        assert len(out.token_ids) == 30  # the distribution stays, the tokens may differ
    assert set(seen) >= {(2,), (3, 4), (2, 3, 4)}
    assert out.stats.draft_tokens > 0
