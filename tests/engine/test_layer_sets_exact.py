"""Whichever layers are left out, and whenever that changes, the answer is the full model's."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swift_backend import SamplingParams, SwiftLLM
from swift_backend.errors import InvalidRequest
from swift_backend.sequence import Sequence
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.policy import POLICY_MODES
from swift_backend.speculation.pool import SHIPPED, Pool, save_pool
from tests.conftest import TINY_VOCABULARY
from tests.engine.stepping import Stepping

LAYERS, MAX_TOKENS = 7, 24
MODES = ("fixed", "similarity", "search", "skip", "auto", "static")
SAMPLED = {"temperature": 1.0, "top_p": 0.95}


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(2, TINY_VOCABULARY) for _ in range(n)] for n in (2, 14, 60)]


@pytest.fixture(scope="module")
def layer_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shipped file with two sets, which leave out more than the guide does."""
    pool = Pool(LAYERS)
    pool.add(0b0011_1100_0000, SHIPPED), pool.add(0b0001_1111_0000, SHIPPED)
    path = tmp_path_factory.mktemp("sets") / "layer_sets.json"
    assert save_pool(path, pool)
    return path


@pytest.fixture(scope="module", params=["mistral", pytest.param("qwen3", marks=pytest.mark.slow)])
def llm(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path], layer_sets: Path) -> SwiftLLM:
    """With windows and without; searches ten times as much as usual, and drafts without asking whether it pays."""
    options: dict[str, Any] = {"search_share": 0.2, "limit_drafts": False, "debug": True, "prefix_cache": False}
    directory = str(tiny_model(request.param))
    return SwiftLLM(directory, "float32", layer_sets=str(layer_sets), kv_cache_tokens=2048, **options)


def params(mode: str, **more: Any) -> SamplingParams:
    threshold = {} if mode == "off" else {"confidence_threshold": 0.0}
    return SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, speculation=mode, seed=5, **threshold, **more)


@pytest.fixture(scope="module", params=[{}, SAMPLED], ids=["greedy", "sampled"])
def sampling(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.mark.parametrize("mode", MODES)
def test_each_way_alone_and_in_a_batch(llm: SwiftLLM, sampling: dict[str, Any], mode: str) -> None:
    plain = [out.token_ids for out in llm.generate(prompts(), params("off", **sampling))]
    together = llm.generate(prompts(), params(mode, **sampling))
    alone = [llm.generate([prompt], params(mode, **sampling))[0] for prompt in prompts()]
    assert [out.token_ids for out in together] == [out.token_ids for out in alone] == plain
    if mode not in POLICY_MODES:  # a policy may find that nothing pays: tests/engine/test_policy_exact.py
        assert sum(out.stats.draft_tokens for out in alone) > 0
    assert all(out.stats.layer_set.startswith("0x") and 0 < out.stats.draft_cost_ratio < math.inf for out in alone)


def test_all_ways_in_one_batch(llm: SwiftLLM, sampling: dict[str, Any]) -> None:
    """Sets of several kinds are alive at once, beside one that never drafts."""
    modes = ["off", *MODES]
    prompt = prompts()[1]
    [plain] = llm.generate([prompt], params("off", **sampling))
    outputs = llm.generate([prompt] * len(modes), [params(mode, **sampling) for mode in modes])
    assert [out.token_ids for out in outputs] == [plain.token_ids] * len(modes)
    assert len({out.stats.layer_set for out in outputs[1:]}) > 1


def test_a_set_that_changes_every_round(llm: SwiftLLM, sampling: dict[str, Any]) -> None:
    """Any mask at any time, the empty one and all sublayers among them."""
    rng = random.Random(4)
    masks = [0, (1 << 2 * LAYERS) - 1, *(rng.getrandbits(2 * LAYERS) for _ in range(500))]

    def change(engine: Any) -> None:
        for sequence in engine._running:
            sequence.layer_set = LayerSet(LAYERS, rng.choice(masks))

    plain = [out.token_ids for out in llm.generate(prompts(), params("off", **sampling))]
    stepping = Stepping(llm.engine, after_step=change)
    for number, prompt in enumerate(prompts()):
        stepping.submit(str(number), prompt, params("fixed", **sampling))
    stepping.finish()
    assert [stepping.tokens(str(number)) for number in range(len(plain))] == plain


def test_a_search_tries_sets_and_leaves_no_trace_in_the_cache(llm: SwiftLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[float] = []
    chooser = llm.engine._layers
    round_done = chooser.round_done

    def watched(sequence: Sequence, seconds: float) -> float:
        before = [both.clone() for both in llm.engine.runner.cache.slots]
        spent.append(round_done(sequence, seconds))
        assert all((both == old).all() for both, old in zip(llm.engine.runner.cache.slots, before, strict=True))
        return spent[-1]

    monkeypatch.setattr(chooser, "round_done", watched)
    [out] = llm.generate([prompts()[2]], params("search"))
    assert any(spent)
    assert out.stats.search_seconds == pytest.approx(sum(spent))


def test_static_needs_a_file(tiny_model: Callable[[str], Path]) -> None:
    llm = SwiftLLM(str(tiny_model("llama")), "float32", kv_cache_tokens=256)
    with pytest.raises(InvalidRequest, match="speculation must not be 'static': the server has no layer_sets file"):
        llm.generate([[5]], SamplingParams(speculation="static"))
