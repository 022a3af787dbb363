"""Greedy decoding equals transformers token for token: every architecture, with and without drafts, in any batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from swift_backend import SamplingParams, SwiftLLM
from swift_backend.sequence import Output, Request
from tests.conftest import ARCHITECTURES, TINY_VOCABULARY

MAX_TOKENS = 40
PARAMS = {
    "off": SamplingParams(max_tokens=MAX_TOKENS, speculation="off"),
    "fixed": SamplingParams(max_tokens=MAX_TOKENS, speculation="fixed", confidence_threshold=0.0),
}


def prompts(seed: int, lengths: tuple[int, ...] = (1, 2, 5, 13, 30, 60, 100, 150)) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(2, TINY_VOCABULARY) for _ in range(n)] for n in lengths]


# The others, in fewer ways, are also in test_families.py and test_reports_batching.py.
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES if name != "llama"]


@pytest.fixture(scope="module", params=["llama", *SLOW])
def directory(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def expected(directory: Path, transformers_greedy: Callable[[Path, list[int], int], list[int]]) -> list[list[int]]:
    return [transformers_greedy(directory, prompt, MAX_TOKENS) for prompt in prompts(1)]


def load(directory: Path, **options: object) -> SwiftLLM:
    return SwiftLLM(
        str(directory), dtype="float32", debug=True, limit_drafts=False, skip_ratio=0.4, kv_cache_tokens=4096, **options
    )


@pytest.mark.parametrize("speculation", ["off", "fixed"])
def test_alone(directory: Path, expected: list[list[int]], speculation: str) -> None:
    llm = load(directory)
    assert [llm.generate([p], PARAMS[speculation])[0].token_ids for p in prompts(1)] == expected


@pytest.mark.parametrize("speculation", ["off", "fixed"])
def test_in_a_batch_of_mixed_lengths(directory: Path, expected: list[list[int]], speculation: str) -> None:
    outputs = load(directory).generate(prompts(1), PARAMS[speculation])
    assert [out.token_ids for out in outputs] == expected


def test_drafting_and_plain_rows_in_one_batch_with_chunked_prefill(directory: Path, expected: list[list[int]]) -> None:
    modes = ["off", "fixed"] * 4
    outputs = load(directory, max_step_tokens=24).generate(prompts(1), [PARAMS[mode] for mode in modes])
    assert [out.token_ids for out in outputs] == expected
    drafted = [out.stats.draft_tokens for out in outputs]
    assert drafted[::2] == [0, 0, 0, 0]
    assert drafted[-1] > 0  # the longest prompt is read last, so its drafts are certain of a place in the step


@pytest.mark.parametrize("speculation", ["off", "fixed"])
def test_admitted_midway(directory: Path, expected: list[list[int]], speculation: str) -> None:
    """A new prompt every third step, while the others are at any stage; room for three at a time."""
    engine = load(directory, max_running=3, max_step_tokens=50).engine
    news: dict[str, list[Output]] = {}
    todo = list(enumerate(prompts(1)))
    for step in count():
        if step % 3 == 0 and todo:
            number, prompt = todo.pop(0)
            outputs = news.setdefault(str(number), [])
            engine.submit(Request(str(number), prompt, PARAMS[speculation], outputs.append))
        if not engine.step() and engine.idle and not todo:
            break
    answers = [[t for out in news[str(n)] for t in out.token_ids] for n in range(len(expected))]
    assert answers == expected


def test_drafts_are_made_rejected_and_accepted(directory: Path) -> None:
    """Otherwise the tests above would show nothing about speculation."""
    outputs = load(directory).generate(prompts(1), PARAMS["fixed"])
    drafted = sum(out.stats.draft_tokens for out in outputs)
    accepted = sum(out.stats.accepted_draft_tokens for out in outputs)
    assert 0 < accepted < drafted
