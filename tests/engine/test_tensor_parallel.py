"""Two processes that share a model answer what one answers, whatever is drafted, reused and moved in the cache."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_backend import ModelLoadError, SamplingParams, SwiftLLM
from swift_backend.batch import RowGroup
from swift_backend.errors import ConfigError
from swift_backend.model.shadow import logits_without
from swift_backend.parallel.runner import ParallelRunner
from swift_backend.scheduler import Work
from swift_backend.speculation.draft import LAYER_SKIP, SIBLING, Draft
from tests.conftest import TINY_VOCABULARY
from tests.engine.scripted_drafts import load

MODES = ("off", "fixed", "similarity", "search", "skip", "auto", "ngram", "lookahead")
GREEDY = SamplingParams(max_tokens=16, ignore_eos=True, confidence_threshold=0.0)
SAMPLED = replace(GREEDY, temperature=1.0, top_p=0.95, repetition_penalty=1.2, seed=5)
SKIPS = [0, 0b1111_0000, 0b0000_1111_0100, 0b10_0000_0000_0000]


def prompts(lengths: Seq[int] = (1, 2, 5, 13, 30, 60, 9, 40)) -> list[list[int]]:
    rng = random.Random(4)
    return [[rng.randrange(2, TINY_VOCABULARY) for _ in range(n)] for n in lengths]


def ranks_of(llm: SwiftLLM) -> ParallelRunner:
    runner = llm.engine.runner
    assert isinstance(runner, ParallelRunner)
    return runner


@pytest.fixture(scope="module")
def one(tiny_model: Callable[[str], Path]) -> SwiftLLM:
    return load(tiny_model("qwen2"), kv_cache_tokens=2048)


@pytest.fixture(scope="module")
def two(tiny_model: Callable[[str], Path]) -> Iterator[SwiftLLM]:
    """With drafts in every batch, and a search that has half of the time."""
    llm = load(tiny_model("qwen2"), kv_cache_tokens=2048, tensor_parallel=2, search_share=0.5)
    yield llm
    ranks_of(llm).close()


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_every_way_of_drafting_in_one_batch(one: SwiftLLM, two: SwiftLLM, params: SamplingParams) -> None:
    expected = [out.token_ids for out in one.generate(prompts(), replace(params, speculation="off"))]
    outputs = two.generate(prompts(), [replace(params, speculation=mode) for mode in MODES])
    assert [out.token_ids for out in outputs] == expected
    assert outputs[0].stats.draft_tokens == 0
    for out in outputs[1:4]:
        assert 0 < out.stats.accepted_draft_tokens < out.stats.draft_tokens


def test_a_known_beginning_is_copied_at_every_rank(one: SwiftLLM, two: SwiftLLM) -> None:
    """Also a part of it, to another place."""
    [prompt] = prompts([70])
    for given in (prompt, [*prompt, 7, 8], [*prompt[:40], 9]):
        [plain] = one.generate([given], replace(GREEDY, max_tokens=6, speculation="off"))
        [out] = two.generate([given], replace(GREEDY, max_tokens=6, speculation="fixed"))
        assert out.token_ids == plain.token_ids
    assert out.stats.reused_prompt_tokens == 40


class OneWrongOneRight:
    """Drafts a wrong token, and beside it the right one with the next after it."""

    def __init__(self, answers: dict[int, list[int]]) -> None:
        """answers: by the length of the prompt."""
        self._answers = answers

    def draft(self, plan: Seq[Work]) -> list[Draft]:
        return [self._one(work) for work in plan]

    def _one(self, work: Work) -> Draft:
        sequence = work.sequence
        right = self._answers[sequence.num_prompt_tokens][sequence.num_output_tokens :][:2]
        if work.draft_budget < 3 or len(right) < 2:
            return Draft()
        wrong = (right[0] + 1) % TINY_VOCABULARY
        return Draft((wrong, *right), (-1, -1, 1), (LAYER_SKIP, SIBLING, SIBLING))


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_accepted_branches_move_at_every_rank(
    one: SwiftLLM, two: SwiftLLM, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = prompts([3, 20, 50])
    plain = [out.token_ids for out in one.generate(given, replace(params, speculation="off"))]
    answers = {len(prompt): answer for prompt, answer in zip(given, plain, strict=True)}
    monkeypatch.setattr(two.engine, "_drafter", OneWrongOneRight(answers))
    outputs = two.generate(given, replace(params, speculation="fixed"))
    assert [out.token_ids for out in outputs] == plain
    assert [out.stats.accepted["sibling"] > 6 for out in outputs] == [True] * 3


def test_candidates_are_tried_at_every_rank(one: SwiftLLM, two: SwiftLLM) -> None:
    """What the search asks of a text that is in the cache."""
    [tokens] = prompts([30])
    said = []
    for llm in (one, two):
        runner = llm.engine.runner
        extent = runner.cache.reserve(len(tokens))
        assert extent is not None
        runner.forward([RowGroup(tokens, 0, extent.start, 0)])
        positions = [9, 28, 29, 14]
        said.append(logits_without(runner.shadow(extent.start, [tokens[i] for i in positions], positions), SKIPS))
        runner.cache.release(extent)
    torch.testing.assert_close(said[0], said[1], rtol=1e-4, atol=1e-4)


def test_the_search_goes_on(two: SwiftLLM) -> None:
    before = two.engine._layers.search.seconds
    two.generate(prompts([30]), replace(GREEDY, speculation="search", max_tokens=24))
    assert two.engine._layers.search.seconds > before


def test_each_rank_holds_its_share(one: SwiftLLM, two: SwiftLLM) -> None:
    whole = sum(linear.num_bytes for sublayer in one.engine.runner.decoder.sublayers for linear in sublayer.linears)
    assert ranks_of(two).num_bytes == (whole // 2, whole // 2)
    assert 2 * two.engine.runner.cache.num_bytes == one.engine.runner.cache.num_bytes


def test_a_model_that_cannot_be_split_is_refused(tiny_model: Callable[[str], Path]) -> None:
    options: dict[str, Any] = {"dtype": "float32", "tensor_parallel": 4}
    with pytest.raises(ModelLoadError, match="tensor_parallel is 4, but the model's num_attention_heads, 6"):
        SwiftLLM(str(tiny_model("llama")), **options)


def test_rows_keep_their_bits_in_two_ranks(tiny_model: Callable[[str], Path]) -> None:
    """Two parts have one sum, whatever is beside them."""
    llm = load(tiny_model("llama"), dtype="bfloat16", kv_cache_tokens=2048, tensor_parallel=2, numerics="invariant")
    try:
        plain = replace(GREEDY, speculation="off", logprobs=1)
        alone = [llm.generate([prompt], plain)[0].logprobs for prompt in prompts()]
        drafted = llm.generate(prompts(), replace(plain, speculation="fixed"))
        assert [out.logprobs for out in drafted] == alone
    finally:
        ranks_of(llm).close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel": 2, "dtype": "int8"}, "dtype int8 is for one process, and tensor_parallel is 2"),
        ({"tensor_parallel": 3, "numerics": "invariant"}, "numerics invariant is for one or two ranks"),
    ],
)
def test_what_ranks_cannot_do_is_refused(tiny_model: Callable[[str], Path], options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SwiftLLM(str(tiny_model("llama")), **options)
