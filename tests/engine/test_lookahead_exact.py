"""Lookahead decoding yields the full model's tokens, alone, in a batch, greedy and sampled, by either rule."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swift_backend import SamplingParams, SwiftLLM
from tests.conftest import TINY_VOCABULARY
from tests.engine.scripted_drafts import load

SAMPLED = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1, "logit_bias": {50: 3.0, 60: -100.0}}
FAMILIES = ["mistral", "llama", pytest.param("qwen3", marks=pytest.mark.slow)]


def prompts() -> list[list[int]]:
    rng = random.Random(10)
    few = [[rng.randrange(2, TINY_VOCABULARY) for _ in range(n)] for n in (2, 15, 60)]
    return [*few, few[1] * 3]


def params(mode: str, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 60, "ignore_eos": True, "speculation": mode, "seed": 5, **more})


@pytest.fixture(scope="module", params=FAMILIES)
def llm(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> SwiftLLM:
    """With a sliding window and without."""
    return load(tiny_model(request.param), prefix_cache=False)


@pytest.mark.parametrize("sampling", [{}, SAMPLED, {"max_draft_tokens": 4}, {"max_draft_tokens": 1}])
def test_alone_and_in_a_batch(llm: SwiftLLM, sampling: dict[str, Any]) -> None:
    plain_sampling = {name: value for name, value in sampling.items() if name != "max_draft_tokens"}
    plain = [out.token_ids for out in llm.generate(prompts(), params("off", **plain_sampling))]
    together = llm.generate(prompts(), params("lookahead", **sampling))
    alone = [llm.generate([prompt], params("lookahead", **sampling))[0] for prompt in prompts()]
    assert [out.token_ids for out in together] == [out.token_ids for out in alone] == plain


def test_its_n_grams_are_accepted_and_nothing_else_is_counted(llm: SwiftLLM) -> None:
    """A tiny model soon repeats itself, so what it says of guesses comes true."""
    outputs = [llm.generate([prompt], params("lookahead"))[0] for prompt in prompts()]
    accepted = sum(out.stats.accepted_draft_tokens for out in outputs)
    assert accepted > 0
    for out in outputs:
        stats = out.stats
        assert set(stats.drafted) <= {"lookahead"} and stats.layer_set == "" and stats.draft_passes == 0
        assert stats.rounds + stats.accepted_draft_tokens == len(out.token_ids) - 1
        assert stats.provenance.count("lookahead") == stats.accepted_draft_tokens
        assert stats.drafted.get("lookahead", 0) <= 9 * stats.rounds  # 15 rows, 6 of which are the window's


def test_beside_every_other_way_in_one_batch(llm: SwiftLLM) -> None:
    modes = ["off", "lookahead", "auto", "ngram", "fixed", "lookahead", "search"]
    [plain] = llm.generate([prompts()[1]], params("off", **SAMPLED))
    outputs = llm.generate([prompts()[1]] * len(modes), [params(mode, **SAMPLED) for mode in modes])
    assert [out.token_ids for out in outputs] == [plain.token_ids] * len(modes)


def test_by_rejection(tiny_model: Callable[[str], Path]) -> None:
    """Greedy answers are the full model's; a seed gives the same answer again."""
    llm = load(tiny_model("llama"), acceptance="rejection")
    plain = llm.generate(prompts(), params("off"))
    outputs = llm.generate(prompts(), params("lookahead"))
    assert [out.token_ids for out in outputs] == [out.token_ids for out in plain]
    assert sum(out.stats.accepted_draft_tokens for out in outputs) > 0
    sampled = replace(params("lookahead"), temperature=0.8)
    first, again = (llm.generate([prompts()[1]], sampled)[0].token_ids for _ in range(2))
    assert first == again


def test_its_metrics_have_a_name_of_their_own(llm: SwiftLLM) -> None:
    reports: list[Any] = []
    on_step, llm.engine._on_step = llm.engine._on_step, reports.append
    llm.generate(prompts(), params("lookahead"))
    llm.engine._on_step = on_step
    drafted = sum((report.draft_tokens for report in reports), type(reports[0].draft_tokens)())
    assert set(drafted) == {"lookahead"}
