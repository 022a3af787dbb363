"""Whatever a request asks for, its answer does not depend on speculation, batch mates, chunking or streaming."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from swift_backend import SamplingParams, SwiftLLM
from tests.conftest import TINY_VOCABULARY, save_tiny_model, tiny_config

MAX_TOKENS = 10
BATCHES, REQUESTS = 36, 64  # 2304 cases
FAST_BATCHES = 2
WORDS = [f"w{i}" for i in range(2, 20)]


@dataclass(frozen=True)
class Case:
    """A request, without a word on speculation."""

    prompt: list[int]
    params: SamplingParams


def random_case(rng: random.Random) -> Case:
    """Each option at its default half of the time, so that all appear alone and together."""

    def tokens(most: int) -> list[int]:
        return [rng.randrange(TINY_VOCABULARY) for _ in range(rng.randint(0, most))]

    max_tokens = rng.randint(1, MAX_TOKENS)
    options: dict[str, Any] = {
        "min_tokens": rng.randint(0, max_tokens),
        "temperature": rng.choice([0.3, 0.7, 1.0, 1.6]),
        "top_k": rng.choice([-1, 1, 3, 20, 1000]),
        "top_p": rng.choice([0.95, 0.6, 0.05]),
        "min_p": rng.choice([0.02, 0.3]),
        "repetition_penalty": rng.choice([0.6, 1.3, 3.0]),
        "presence_penalty": rng.choice([-2.0, 0.7, 2.0]),
        "frequency_penalty": rng.choice([-1.0, 0.4, 2.0]),
        "logit_bias": {token: rng.choice([-100.0, -2.0, 3.0, 6.0]) for token in tokens(3)},
        "bad_words": rng.sample([*WORDS, "w3 w4", "w5 w5"], rng.randint(0, 8)),
        "stop": rng.sample(["w7", "7 w", "1", "w2 w", "3 w4"], rng.randint(0, 3)),
        "stop_token_ids": tokens(3),
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "logprobs": rng.choice([0, 3]),
        "max_draft_tokens": rng.randint(1, 5),
    }
    chosen = {name: value for name, value in options.items() if rng.random() < 0.5}
    chosen |= {"seed": rng.randrange(2**63), "confidence_threshold": rng.choice([0.0, 0.0, 0.05])}
    return Case([rng.randrange(TINY_VOCABULARY), *tokens(30)], SamplingParams(max_tokens=max_tokens, **chosen))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("llama", hidden_size=24, intermediate_size=32, num_attention_heads=4, num_hidden_layers=6)
    return save_tiny_model(tmp_path_factory.mktemp("options"), config)


@pytest.fixture(scope="module")
def roomy(directory: Path) -> SwiftLLM:
    return load(directory, max_running=64, max_step_tokens=2048)


@pytest.fixture(scope="module")
def cramped(directory: Path) -> SwiftLLM:
    """Few run at once, prompts come in chunks, drafts are cut by the step's budget."""
    return load(directory, max_running=20, max_step_tokens=61)


def load(directory: Path, **options: Any) -> SwiftLLM:
    return SwiftLLM(
        str(directory), dtype="float32", debug=True, limit_drafts=False, skip_ratio=0.4, kv_cache_tokens=8192, **options
    )


Answer = tuple[list[int], str, str, list[Any]]


def answers(llm: SwiftLLM, cases: list[Case], modes: list[str]) -> list[Answer]:
    params = [replace(case.params, speculation=mode) for case, mode in zip(cases, modes, strict=True)]
    outputs = llm.generate([case.prompt for case in cases], params)
    assert llm.engine.idle
    return [(out.token_ids, out.text, out.finish_reason, approximate(out.logprobs)) for out in outputs]


def streamed(llm: SwiftLLM, case: Case, mode: str) -> Answer:
    deltas = list(llm.stream(case.prompt, replace(case.params, speculation=mode)))
    ids = [token for delta in deltas for token in delta.token_ids]
    logprobs = [one for delta in deltas for one in delta.logprobs]
    return ids, "".join(delta.text for delta in deltas), deltas[-1].finish_reason, approximate(logprobs)


def approximate(logprobs: Any) -> list[Any]:
    """The same logits in another pass differ in the last bits."""
    return [(one.token_id, pytest.approx(one.logprob, abs=1e-4), len(one.top)) for one in logprobs]


@pytest.mark.parametrize(
    "batch",
    [*range(FAST_BATCHES), *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(FAST_BATCHES, BATCHES))],
)
def test_one_answer_whatever_the_circumstances(roomy: SwiftLLM, cramped: SwiftLLM, batch: int) -> None:
    """vLLM #6718, #7047, #9441, PR #13933: off and fixed, alone, in batches, in chunks, streamed."""
    rng = random.Random(batch)
    cases = [random_case(rng) for _ in range(REQUESTS)]
    expected = answers(roomy, cases, ["off"] * REQUESTS)
    for case, (ids, _, _, logprobs) in zip(cases, expected, strict=True):
        assert case.params.min_tokens <= len(ids) <= case.params.max_tokens
        assert len(logprobs) == (0 if case.params.logprobs is None else len(ids))
    assert answers(roomy, cases, ["fixed"] * REQUESTS) == expected
    order = rng.sample(range(REQUESTS), REQUESTS)
    mixed = answers(cramped, [cases[i] for i in order], [rng.choice(["fixed", "off", "auto"]) for _ in order])
    assert mixed == [expected[i] for i in order]
    one, other = rng.sample(range(REQUESTS), 2)
    assert streamed(roomy, cases[one], "fixed") == expected[one]
    assert answers(cramped, [cases[other]], ["fixed"]) == [expected[other]]


def test_the_cases_draft_and_are_rejected(roomy: SwiftLLM) -> None:
    """Otherwise the test above would compare plain decoding with itself."""
    cases = [random_case(random.Random(seed)) for seed in range(200)]
    params = [replace(case.params, speculation="fixed") for case in cases]
    stats = [out.stats for out in roomy.generate([case.prompt for case in cases], params)]
    drafted, accepted = sum(one.draft_tokens for one in stats), sum(one.accepted_draft_tokens for one in stats)
    assert drafted > 300
    assert 0.2 * drafted < accepted < 0.8 * drafted
