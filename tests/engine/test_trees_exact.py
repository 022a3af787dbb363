"""Alternatives that are verified beside a draft change nothing but the number of rounds."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_backend import SamplingParams, SwiftLLM
from swift_backend.batch import RowGroup
from swift_backend.scheduler import Work
from swift_backend.speculation.draft import LAYER_SKIP, SIBLING, Draft
from tests.conftest import TINY_VOCABULARY
from tests.engine.scripted_drafts import load

MAX_TOKENS = 30
SAMPLED = {"temperature": 1.0, "top_p": 0.95, "presence_penalty": 0.5, "repetition_penalty": 1.3}


def prompts() -> list[list[int]]:
    rng = random.Random(6)
    return [[rng.randrange(2, TINY_VOCABULARY) for _ in range(n)] for n in (3, 20, 70)]


@pytest.fixture(scope="module", params=["mistral", "llama", pytest.param("qwen3", marks=pytest.mark.slow)])
def llm(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> SwiftLLM:
    """With a sliding window and without."""
    return load(tiny_model(request.param), prefix_cache=False)


@pytest.fixture(params=[{}, SAMPLED], ids=["greedy", "sampled"])
def sampling(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


class CombDrafter:
    """Chains that go wrong at a place that is drawn, and alternatives of which one is right, now and then.

    answers: by prompt. It is asked for random widths, token 0 among the alternatives.
    """

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        self._answers = answers
        self._rng = random.Random(7)
        self.by_sibling = 0

    def draft(self, plan: Seq[Work]) -> list[Draft]:
        return [self._one(work) for work in plan]

    def _one(self, work: Work) -> Draft:
        if not work.draft_budget:
            return Draft()
        rng, done = self._rng, work.sequence.num_output_tokens
        right = self._answers[tuple(work.sequence.request.prompt_ids)][done : done + 4]
        length = rng.randint(0, len(right))
        chain = [self._other(token) if rng.random() < 0.3 else token for token in right[:length]]
        siblings: list[tuple[int, int]] = []
        for depth in range(min(length + 1, len(right))):
            siblings += [(depth - 1, self._other(right[depth])) for _ in range(rng.randint(0, 2))]
            if rng.random() < 0.5:
                siblings.append((depth - 1, right[depth]))
        nodes = [*((i - 1, token) for i, token in enumerate(chain)), *siblings][: work.draft_budget]
        drafters = [LAYER_SKIP] * len(chain) + [SIBLING] * len(siblings)
        parents, tokens = tuple(parent for parent, _ in nodes), tuple(token for _, token in nodes)
        return Draft(tokens, parents, tuple(drafters[: len(nodes)]))

    def _other(self, token: int) -> int:
        return (token + self._rng.randint(1, 9)) % TINY_VOCABULARY if self._rng.random() < 0.7 or not token else 0


def test_the_answers_are_those_without_drafts(
    llm: SwiftLLM, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and in a batch; siblings at every depth are accepted, so their keys and values move to their place."""
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, speculation="off", seed=5, logprobs=2, **sampling)
    plain = llm.generate(prompts(), params)
    answers = {tuple(prompt): out.token_ids for prompt, out in zip(prompts(), plain, strict=True)}
    monkeypatch.setattr(llm.engine, "_drafter", CombDrafter(answers))
    drafted = replace(params, speculation="fixed", max_draft_tokens=12)
    for _ in range(3):
        together = llm.generate(prompts(), drafted)
        alone = [llm.generate([prompt], drafted)[0] for prompt in prompts()]
        for outputs in (together, alone):
            assert [out.token_ids for out in outputs] == [out.token_ids for out in plain]
            for out, other in zip(outputs, plain, strict=True):
                assert [one.token_id for one in out.logprobs] == out.token_ids
                assert out.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-3)
                assert out.stats.accepted["sibling"] > 0 and out.stats.rounds < MAX_TOKENS - 1
                assert len(out.stats.provenance) == len(out.token_ids)
                assert out.stats.provenance.count("sibling") == out.stats.accepted["sibling"]


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_greedy_answers_by_either_rule(
    tiny_model: Callable[[str], Path], acceptance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = load(tiny_model("llama"), acceptance=acceptance)
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, speculation="off")
    [plain] = llm.generate([prompts()[1]], params)
    monkeypatch.setattr(llm.engine, "_drafter", CombDrafter({tuple(prompts()[1]): plain.token_ids}))
    [out] = llm.generate([prompts()[1]], replace(params, speculation="fixed"))
    assert out.token_ids == plain.token_ids
    assert out.stats.accepted["sibling"] > 0


def test_a_row_of_a_tree_is_what_it_is_in_a_chain(llm: SwiftLLM) -> None:
    """Each node's logits are those of the path that leads to it, whatever alternatives lie between them."""
    runner, tokens = llm.engine.runner, prompts()[2]
    extent = runner.cache.reserve(96)
    assert extent is not None
    runner.forward([RowGroup(tokens, 0, extent.start, 0)])
    rows, parents = [9, 11, 12, 13, 21, 22, 23, 24, 25, 26], [-1, 0, 1, 2, 0, 0, 1, 2, 3, -1]
    tree = runner.forward([RowGroup(rows, len(tokens), extent.start, len(rows), parents)])
    for row in range(len(rows)):
        path, at = [], row
        while at >= 0:
            path.append(rows[at])
            at = parents[at]
        [chain] = runner.forward([RowGroup(path[::-1], len(tokens), extent.start, 1)])
        assert torch.allclose(tree[row], chain, atol=2e-4)
    runner.cache.release(extent)
