"""Public reports about rows of one batch and about what a rejected draft leaves behind (reference §7, 8, 16–23 and 27).

20 (unaccepted drafts become cacheable): there is no prefix cache; tested is that nothing of a rejected draft reaches
the next request. 21 (a cache that cannot be trimmed): the cache keeps whole windows, so rolling back is a smaller
length; recurrent layers do not exist, since no such model loads (tests/unit/model/test_config.py).
Left to the controller: 24 and 25 (throughput over the load), 26 (speed varies from run to run: no speed is promised)
and 28 (probing again; the brake of `auto` does: tests/unit/speculation/test_brake.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from swift_backend import SamplingParams, SwiftLLM
from swift_backend.sequence import Output, Request
from tests.conftest import ARCHITECTURES, TINY_VOCABULARY, save_tiny_model, tiny_config
from tests.engine.scripted_drafts import Script, ScriptedDrafter, answering, by_prompt, load, nothing

Greedy = Callable[[Path, list[int], int], list[int]]
FIXED = SamplingParams(max_tokens=30, speculation="fixed", confidence_threshold=0.0, ignore_eos=True)
OFF = replace(FIXED, speculation="off")
ROUNDS_OF_64 = replace(FIXED, max_tokens=66)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(1000 * seed + length)
    return [rng.randrange(2, TINY_VOCABULARY) for _ in range(length)]


P, Q = [30, 57, 37, 56, 61], prompt_of(9)  # the answer to P begins with eleven different tokens


@pytest.fixture(scope="module")
def llm(tiny_model: Callable[[str], Path]) -> SwiftLLM:
    return load(tiny_model("llama"))


@pytest.fixture(scope="module")
def plain(llm: SwiftLLM) -> list[int]:
    return ids(llm, [P], OFF)[0]


def ids(llm: SwiftLLM, prompts: list[list[int]], params: SamplingParams | list[SamplingParams]) -> list[list[int]]:
    return [out.token_ids for out in llm.generate(prompts, params)]


def script(
    llm: SwiftLLM, monkeypatch: pytest.MonkeyPatch, scripts: Mapping[tuple[int, ...], Script]
) -> ScriptedDrafter:
    drafter = ScriptedDrafter(by_prompt(scripts))
    monkeypatch.setattr(llm.engine, "_drafter", drafter)
    return drafter


def prompt_lookup(sequence: object) -> list[int]:
    """What followed the last earlier occurrence of the last token, as an n-gram drafter proposes it."""
    tokens: list[int] = sequence.tokens  # type: ignore[attr-defined]
    found = [i for i in range(len(tokens) - 1) if tokens[i] == tokens[-1]]
    return tokens[found[-1] + 1 : found[-1] + 6] if found else []


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_a_batch_without_any_draft_decodes_plainly(
    tiny_model: Callable[[str], Path], acceptance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.8, vllm#7047: an IndexError where no sequence had a draft."""
    llm = load(tiny_model("llama"), acceptance=acceptance)
    expected = ids(llm, [P, Q], OFF)
    drafter = script(llm, monkeypatch, {tuple(P): nothing, tuple(Q): nothing})
    outputs = llm.generate([P, Q], FIXED)
    assert [out.token_ids for out in outputs] == expected
    assert [(out.stats.draft_tokens, out.stats.rounds) for out in outputs] == [(0, 29), (0, 29)]
    assert len(drafter.made) == 56  # asked in all rounds but the last, where no draft can be used


def test_some_rows_without_a_draft(llm: SwiftLLM, plain: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """§7.8, vllm#7047: a row without a draft between rows with one."""
    expected = ids(llm, [Q], OFF)[0]
    script(llm, monkeypatch, {tuple(P): answering(plain), tuple(Q): nothing})
    outputs = llm.generate([P, Q, P], FIXED)
    assert [out.token_ids for out in outputs] == [plain, expected, plain]
    assert [out.stats.rounds for out in outputs] == [5, 29, 5]


def test_a_greedy_answer_does_not_feel_seeded_neighbours(llm: SwiftLLM, plain: list[int]) -> None:
    """§7.16, vllm#9441: greedy A beside B with seeds 1 to 8 is what A is alone."""
    sampled = [replace(FIXED, temperature=1.0, seed=seed) for seed in range(1, 9)]
    alone = [ids(llm, [Q], replace(one, speculation="off"))[0] for one in sampled]
    together = ids(llm, [P] + [Q] * 8, [FIXED, *sampled])
    assert together == [plain, *alone]
    assert len({tuple(one) for one in alone}) == 8


@pytest.mark.parametrize("speculation", ["off", "fixed"])
@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_greedy_rows_beside_a_sampled_one(
    tiny_model: Callable[[str], Path], transformers_greedy: Greedy, acceptance: str, speculation: str
) -> None:
    """§7.17, vllm PR#13933, #13499: [T=0, T=1, T=0]; the greedy rows are identical."""
    llm = load(tiny_model("llama"), acceptance=acceptance)
    greedy = replace(FIXED, speculation=speculation, ignore_eos=False)
    first, sampled, last = ids(llm, [P, P, Q], [greedy, replace(greedy, temperature=1.0, seed=3), greedy])
    assert first == transformers_greedy(tiny_model("llama"), P, 30)
    assert last == transformers_greedy(tiny_model("llama"), Q, 30)
    assert sampled != first


@pytest.fixture(scope="module")
def long_context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("llama", max_position_embeddings=1024, eos_token_id=None)
    return save_tiny_model(tmp_path_factory.mktemp("long"), config)


@pytest.mark.parametrize("drafts", ["scripted", "own"])
def test_rows_of_different_length_and_acceptance_stay_exact(
    long_context: Path, transformers_greedy: Greedy, drafts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.18, eBay 2510.22876: lengths 5, 500 and 37, each accepting at its own pace, over 64 rounds."""
    llm = load(long_context)
    prompts = [prompt_of(5), prompt_of(500), prompt_of(37)]
    expected = [transformers_greedy(long_context, prompt, 66) for prompt in prompts]
    if drafts == "scripted":
        paces = [answering(expected[0], 3), answering(expected[1], 1), answering(expected[2], 2)]
        script(llm, monkeypatch, {tuple(one): pace for one, pace in zip(prompts, paces, strict=True)})
    outputs = llm.generate(prompts, ROUNDS_OF_64)
    assert [out.token_ids for out in outputs] == expected
    rounds = [out.stats.rounds for out in outputs]
    if drafts == "scripted":
        assert rounds == [22, 65, 33]
    else:
        assert len(set(rounds)) == 3 and all(out.stats.draft_tokens > 60 for out in outputs)


def test_duplicate_prompts_have_the_same_drafts(llm: SwiftLLM) -> None:
    """§7.19, sglang#8726: [P, Q, P]; both P are drafted for and answered alike."""
    first, other, last = llm.generate([P, Q, P], FIXED)
    assert first.token_ids == last.token_ids != other.token_ids
    counts = [(out.stats.rounds, out.stats.draft_tokens, out.stats.accepted_draft_tokens) for out in (first, last)]
    assert counts[0] == counts[1]
    assert 0 < first.stats.accepted_draft_tokens < first.stats.draft_tokens


def test_the_same_prompt_again_after_rejected_drafts(
    llm: SwiftLLM, plain: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.20, vllm PR#18668, #19006: what was drafted and not accepted is in nobody's cache."""
    drafter = script(llm, monkeypatch, {tuple(P): answering(plain, 1)})
    assert ids(llm, [P], FIXED)[0] == plain
    longer = P + plain[:4]
    monkeypatch.undo()
    assert sum(drafter.lengths) > 100
    assert ids(llm, [P, longer], FIXED) == [plain, ids(llm, [longer], OFF)[0]]
    assert ids(llm, [longer], OFF)[0][:26] == plain[4:]
    assert llm.engine.runner.cache.tokens_used == 0


@pytest.mark.parametrize("wrong_at", [None, 1, 3, 5])
def test_rejected_tokens_leave_a_sliding_window(
    tiny_model: Callable[[str], Path],
    transformers_greedy: Greedy,
    wrong_at: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """§7.21, mlx-lm PR#1109: a window of 12, crossed by prompt and answer; rolled back, not silently kept."""
    llm = load(tiny_model("mistral"))
    assert llm.engine.runner.decoder.config.window == 12
    prompts = [prompt_of(length) for length in (5, 11, 30)]
    expected = [transformers_greedy(tiny_model("mistral"), prompt, 30) for prompt in prompts]
    greedy = replace(FIXED, ignore_eos=False)
    assert ids(llm, prompts, greedy) == expected
    scripts = {tuple(one): answering(answer, wrong_at) for one, answer in zip(prompts, expected, strict=True)}
    drafter = script(llm, monkeypatch, scripts)
    assert ids(llm, prompts, greedy) == expected
    assert len(drafter.made) > 12


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_a_draft_that_is_rejected_whole_brings_one_token(
    tiny_model: Callable[[str], Path], plain: list[int], acceptance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.22, lucidrains/speculative-decoding#3: the length grows by one, whatever was drafted."""
    llm = load(tiny_model("llama"), acceptance=acceptance)
    drafter = script(llm, monkeypatch, {tuple(P): answering(plain, 1)})
    deltas = list(llm.stream(P, FIXED))
    assert [len(delta.token_ids) for delta in deltas] == [1] * 30
    assert [token for delta in deltas for token in delta.token_ids] == plain
    assert drafter.lengths == [5] * 24 + [4, 3, 2, 1]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("gamma", [1, *(pytest.param(gamma, marks=pytest.mark.slow) for gamma in (2, 3)), 5])
def test_prompt_lookup_drafts_change_no_greedy_token(
    tiny_model: Callable[[str], Path],
    transformers_greedy: Greedy,
    architecture: str,
    gamma: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """§7.23, vllm#41758: passes over one row and over several agree in float32; bfloat16 is test_bfloat16.py's."""
    directory = tiny_model(architecture)
    llm = load(directory)
    prompts = [prompt_of(6, seed) * 3 for seed in range(4)]
    drafter = script(llm, monkeypatch, {tuple(one): prompt_lookup for one in prompts})
    greedy = replace(FIXED, ignore_eos=False, max_draft_tokens=gamma)
    assert ids(llm, prompts, greedy) == [transformers_greedy(directory, one, 30) for one in prompts]
    assert set(drafter.lengths) >= {gamma}


@pytest.mark.parametrize(("wrong_at", "accepted"), [(None, 24), (1, 0), (3, 19), (5, 23)])
def test_acceptance_counts_every_drafted_token(
    llm: SwiftLLM, plain: list[int], wrong_at: int | None, accepted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.27, llama.cpp#3919; SWIFT B9: the rate's denominator is all that was drafted, rejected tails included."""
    drafter = script(llm, monkeypatch, {tuple(P): answering(plain, wrong_at)})
    stats = llm.generate([P], FIXED)[0].stats
    assert (stats.draft_tokens, stats.accepted_draft_tokens) == (sum(drafter.lengths), accepted)
    assert stats.acceptance_rate == accepted / sum(drafter.lengths)
    assert stats.output_tokens == 1 + stats.rounds + accepted


def test_drafting_only_sure_tokens_shows_in_the_number_drafted(llm: SwiftLLM, plain: list[int]) -> None:
    """§7.27, llama.cpp#3919: a rate of 100 % is no secret about how little was drafted; nothing drafted is no 100 %."""
    eager, sure, never = (
        llm.generate([P], replace(FIXED, confidence_threshold=threshold))[0] for threshold in (0.0, 0.2, 1.0)
    )
    assert eager.token_ids == sure.token_ids == never.token_ids == plain
    assert eager.stats.draft_tokens > sure.stats.draft_tokens > 0
    assert (never.stats.draft_tokens, never.stats.acceptance_rate) == (0, 0.0)


def test_a_token_behind_the_stop_counts_as_drafted_and_not_as_accepted(
    llm: SwiftLLM, plain: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.27, llama.cpp#3919: five right tokens are drafted, the second ends the answer."""
    script(llm, monkeypatch, {tuple(P): answering(plain)})
    first = plain.index(plain[2])
    assert first == 2
    stats = llm.generate([P], replace(FIXED, stop_token_ids=(plain[2],)))[0].stats
    assert (stats.draft_tokens, stats.accepted_draft_tokens, stats.output_tokens) == (5, 2, 3)


def test_a_batch_of_everything_streams_each_its_own(llm: SwiftLLM, plain: list[int]) -> None:
    """§7.16, vllm#9441: the ids of one request never turn up in another's stream."""
    news: dict[str, list[Output]] = {name: [] for name in ("p", "q")}
    for name, prompt in (("p", P), ("q", Q)):
        llm.engine.submit(Request(name, prompt, FIXED, news[name].append))
    while llm.engine.step():
        pass
    assert all(output.request_id == name for name, outputs in news.items() for output in outputs)
    assert [token for output in news["p"] for token in output.token_ids] == plain
