"""Each family's logits and answers are transformers': prompts, steps, chunks and trees, with any layers left out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_backend import SamplingParams, SwiftLLM
from swift_backend.batch import RowGroup
from swift_backend.errors import InvalidRequest
from swift_backend.runner import Runner
from swift_backend.speculation.layer_set import LayerSet
from tests.conftest import TINY_VOCABULARY, save_tiny_model, tiny_config
from tests.engine.stepping import Stepping

LAYERS, START, MAX_TOKENS = 5, 16, 12
MLPS = sum(2 << 2 * layer for layer in range(LAYERS))
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.2, 1.5, 2.0],
    "long_factor": [4.0, 5.0, 6.0, 7.0],
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "granite": ("granite", {}),
    "granite with biases": ("granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    "olmo2": ("olmo2", {}),
    "olmo2 with biases": ("olmo2", {"attention_bias": True}),
    "smollm3": ("smollm3", {}),
    "smollm3 with windows": ("smollm3", {"use_sliding_window": True, "sliding_window": 12, "mlp_bias": True}),
    "phi3": ("phi3", {}),
    "phi3 with longrope": (
        "phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 128, "sliding_window": None},
    ),
    "gemma2": ("gemma2", {}),
    "gemma2 without caps": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3_text": ("gemma3_text", {}),
    "stablelm": ("stablelm", {}),
    "stablelm, parallel": ("stablelm", {"use_parallel_residual": True, "qk_layernorm": False}),
    "gpt_neox": ("gpt_neox", {}),
    "gpt_neox, in turn": ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}),
    "gpt_neox with another gelu": ("gpt_neox", {"hidden_act": "gelu_fast"}),
}


@dataclass(frozen=True)
class Pair:
    """One model, as we and as transformers load it."""

    directory: Path
    llm: SwiftLLM
    theirs: Any

    @property
    def runner(self) -> Runner:
        return self.llm.engine.runner

    @torch.inference_mode()
    def expected(self, ids: list[int]) -> torch.Tensor:
        """transformers' logits without a cache, [len(ids), vocab]."""
        return self.theirs(torch.tensor([ids]), use_cache=False).logits[0]  # type: ignore[no-any-return]


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(2, TINY_VOCABULARY) for _ in range(length)] for length in (1, 14, 40)]


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    from transformers import AutoModelForCausalLM

    architecture, changes = VARIANTS[request.param]
    config = tiny_config(architecture, **{"num_hidden_layers": LAYERS, **changes})
    directory = save_tiny_model(tmp_path_factory.mktemp("family"), config, draw_norms=True)
    options: dict[str, Any] = {"debug": True, "limit_drafts": False, "prefix_cache": False, "search_share": 0.2}
    options |= {"skip_ratio": 0.4, "protected_layers": 1}
    llm = SwiftLLM(str(directory), "float32", kv_cache_tokens=512, **options)
    return Pair(directory, llm, AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval())


def params(mode: str) -> SamplingParams:
    threshold = {} if mode == "off" else {"confidence_threshold": 0.0}
    return SamplingParams(max_tokens=MAX_TOKENS, speculation=mode, **threshold)


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=5e-5)


def test_prompt_steps_and_chunks(pair: Pair) -> None:
    """The latest positions are beyond the windows of those that have them."""
    ids = prompts()[2]
    expected, forward = pair.expected(ids), pair.runner.forward
    assert_same(forward([RowGroup(ids, 0, START, len(ids))]), expected)
    assert_same(torch.cat([forward([RowGroup([one], i, START, 1)]) for i, one in enumerate(ids)]), expected)
    for size in (5, 18):
        chunks = [RowGroup(ids[i : i + size], i, START, len(ids[i : i + size])) for i in range(0, len(ids), size)]
        assert_same(torch.cat([forward([chunk]) for chunk in chunks]), expected)


def test_a_batch_of_all_kinds_of_rows(pair: Pair) -> None:
    first, second = prompts()[2], prompts()[1]
    pair.runner.forward([RowGroup(first[:30], 0, START, 0), RowGroup(second[:8], 0, 100, 0)])
    groups = [RowGroup(first[30:], 30, START, 10), RowGroup(second[8:9], 8, 100, 1), RowGroup([7, 8, 9], 0, 200, 3)]
    ours = pair.runner.forward(groups)
    expected = [pair.expected(first)[30:], pair.expected(second[:9])[8:], pair.expected([7, 8, 9])]
    assert_same(ours, torch.cat(expected))


def test_a_tree(pair: Pair) -> None:
    """Each row's logits are those of the path that leads to it."""
    prompt = prompts()[2]
    pair.runner.forward([RowGroup(prompt, 0, START, 0)])
    rows, parents = [9, 11, 12, 13, 21, 22], [-1, 0, 1, 0, 3, -1]
    tree = pair.runner.forward([RowGroup(rows, len(prompt), START, len(rows), parents)])
    for path in ([0, 1, 2], [0, 3, 4], [5]):
        expected = pair.expected([*prompt, *(rows[row] for row in path)])
        assert_same(tree[path], expected[len(prompt) :])


def test_answers_with_any_layers_left_out(
    pair: Pair, transformers_greedy: Callable[[Path, list[int], int], list[int]]
) -> None:
    """Without drafts, with sets of each way to choose them, and with some that are drawn anew each round."""
    expected = [transformers_greedy(pair.directory, prompt, MAX_TOKENS) for prompt in prompts()]
    searching = ("search", "auto") if pair.runner.decoder.config.parallel else ()
    for mode in ("off", "fixed", "similarity", *searching):
        outputs = pair.llm.generate(prompts(), params(mode))
        assert [out.token_ids for out in outputs] == expected
        if mode not in ("off", "auto"):  # which may find that nothing pays
            assert sum(out.stats.draft_tokens for out in outputs) > 0
        if searching and mode != "off":  # as one sublayer, with the number of the attention
            assert not any(int(out.stats.layer_set, 16) & MLPS for out in outputs)
    rng, bits = random.Random(4), 2 * LAYERS

    def change(engine: Any) -> None:
        for sequence in engine._running:
            sequence.layer_set = LayerSet(LAYERS, rng.choice([0, (1 << bits) - 1, rng.getrandbits(bits)]))

    stepping = Stepping(pair.llm.engine, after_step=change)
    for number, prompt in enumerate(prompts()):
        stepping.submit(str(number), prompt, params("fixed"))
    stepping.finish()
    assert [stepping.tokens(str(number)) for number in range(len(expected))] == expected


def test_a_prompt_beyond_longrope_s_context_is_refused(tmp_path: Path) -> None:
    architecture, changes = VARIANTS["phi3 with longrope"]
    directory = save_tiny_model(tmp_path, tiny_config(architecture, **changes))
    llm = SwiftLLM(str(directory), "float32", kv_cache_tokens=512)
    with pytest.raises(InvalidRequest, match="input_ids must hold at most 127 tokens, got 129"):
        llm.generate([[5] * 129], params("off"))
    [out] = llm.generate([[5] * 120], SamplingParams(max_tokens=50, ignore_eos=True))
    assert out.num_prompt_tokens + len(out.token_ids) == 128
