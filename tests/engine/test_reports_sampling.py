"""Public reports about drawn tokens (reference §7, cases 9–11 and 15; §2: no residual, one token left, few tokens).

Distributions are compared with transformers' own, computed over every path of a vocabulary of twelve.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_backend import SamplingParams, SwiftLLM
from swift_backend.scheduler import Work
from swift_backend.speculation.draft import Draft
from swift_backend.speculation.layer_set import LayerSet
from tests.chi_square import p_value
from tests.conftest import save_tiny_model, tiny_config
from tests.engine.scripted_drafts import ScriptedDrafter, load

VOCABULARY = 12
PROMPT = [3, 4, 5]
RULES = ["coupled", "rejection"]
FIXED = SamplingParams(max_tokens=24, speculation="fixed", confidence_threshold=0.0, temperature=1.0)
MANY = {"max_running": 250, "debug": True, "max_step_tokens": 4096}


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens of very different chances at temperature 1."""
    config = tiny_config("llama", vocab_size=VOCABULARY, num_hidden_layers=5, eos_token_id=None, initializer_range=0.15)
    return save_tiny_model(tmp_path_factory.mktemp("twelve"), config)


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens of almost the same chance at temperature 1, so that temperature 0.1 and top_p 0.5 matter."""
    config = tiny_config(
        "llama",
        vocab_size=VOCABULARY,
        num_hidden_layers=5,
        eos_token_id=None,
        initializer_range=0.02,
        tie_word_embeddings=False,
    )
    return save_tiny_model(tmp_path_factory.mktemp("flat"), config)


def exact_pairs(directory: Path, temperature: float, top_p: float = 1.0) -> torch.Tensor:
    """P(second token, third token | prompt) by transformers over all first two tokens, float64 [12 * 12]."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    starts = torch.cartesian_prod(*[torch.arange(VOCABULARY)] * 2)  # [144, 2]
    with torch.no_grad():
        ids = torch.cat((torch.tensor([PROMPT]).expand(len(starts), -1), starts), dim=1)
        logits = model(ids).logits[:, len(PROMPT) - 1 :].double()  # [144, 3, 12]
    probs = torch.softmax(logits / temperature, dim=-1)
    best, order = probs.sort(dim=-1, descending=True)
    probs = probs * torch.zeros_like(probs).scatter(2, order, (best.cumsum(-1) - best < top_p).double())
    probs = probs / probs.sum(dim=-1, keepdim=True)
    first, second, third = probs[:, 0], probs[:, 1], probs[:, 2]
    weight = first.gather(1, starts[:, :1]) * second.gather(1, starts[:, 1:])  # [144, 1]
    return (weight * third).view(VOCABULARY, VOCABULARY, VOCABULARY).sum(dim=0).flatten()


def pairs(llm: SwiftLLM, params: SamplingParams, draws: int) -> list[int]:
    """The second and third token of `draws` answers, as the cell of exact_pairs; the first is prefill's."""
    outputs = llm.generate([PROMPT] * draws, [replace(params, seed=seed) for seed in range(draws)])
    accepted = sum(out.stats.accepted_draft_tokens for out in outputs)
    drafted = sum(out.stats.draft_tokens for out in outputs)
    assert 0.03 * drafted < accepted < 0.97 * drafted  # tokens of every kind: accepted, recovered and bonus
    return [out.token_ids[1] * VOCABULARY + out.token_ids[2] for out in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", RULES)
def test_drafts_of_one_token_leave_the_distribution_alone(twelve: Path, acceptance: str) -> None:
    """§7.9, openvino.genai#4190: γ=1 at T>0; a rejection handled a round late, or a KV length off by one.

    The engine checks kv_len after every step.
    """
    params = replace(FIXED, max_tokens=3, max_draft_tokens=1)
    drawn = pairs(load(twelve, acceptance=acceptance, **MANY), params, 1500)
    assert p_value(drawn, exact_pairs(twelve, 1.0)) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", RULES)
def test_temperature_and_top_p_apply_to_every_token_of_a_block(flat: Path, acceptance: str) -> None:
    """§7.10, vllm#9834, PR#10198; SWIFT B1: T=0.1, top_p=0.5; bonus and recovered tokens are no exception."""
    params = replace(FIXED, max_tokens=4, temperature=0.1, top_p=0.5)
    drawn = pairs(load(flat, acceptance=acceptance, **MANY), params, 1500)
    expected = exact_pairs(flat, 0.1, 0.5)
    assert 4 < int((expected > 0.002).sum()) < 100  # a distribution to miss, and something that top_p forbids
    assert p_value(drawn, expected) > 1e-3
    assert p_value(drawn, exact_pairs(flat, 1.0)) < 1e-6


class DrawingDrafter:
    """Draws from a distribution of its own, and says so or not."""

    def __init__(self, q: torch.Tensor, claimed: torch.Tensor | None) -> None:
        self._q, self._claimed = q, claimed
        self._generator = torch.Generator().manual_seed(1)

    def draft(self, plan: Seq[Work]) -> list[Draft]:
        return [self._one(work.draft_budget) for work in plan]

    def _one(self, budget: int) -> Draft:
        if not budget:
            return Draft()
        tokens = torch.multinomial(self._q, budget, replacement=True, generator=self._generator).tolist()
        return Draft(tuple(tokens), probs=None if self._claimed is None else (self._claimed,) * budget)


SKEWED = torch.tensor([8.0, 1, 1, 1, 4, 1, 2, 1, 1, 6, 1, 1], dtype=torch.float64)
SKEWED /= SKEWED.sum()


@pytest.mark.slow
@pytest.mark.parametrize("claimed", [SKEWED, None], ids=["drawn", "found"])
def test_rejection_divides_by_the_distribution_that_was_drawn_from(
    twelve: Path, claimed: torch.Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.11, vllm#40149: drafts drawn from a q that has nothing to do with p; None is a draft that was found."""
    llm = load(twelve, acceptance="rejection", **MANY)
    monkeypatch.setattr(llm.engine, "_drafter", DrawingDrafter(SKEWED, claimed))
    drawn = pairs(llm, replace(FIXED, max_tokens=3), 1500)
    assert p_value(drawn, exact_pairs(twelve, 1.0)) > 1e-3


@pytest.mark.slow
def test_a_wrong_q_would_be_seen(twelve: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§7.11, vllm#40149: otherwise the test above would show nothing."""
    llm = load(twelve, acceptance="rejection", **MANY)
    uniform = torch.full_like(SKEWED, 1 / VOCABULARY)
    monkeypatch.setattr(llm.engine, "_drafter", DrawingDrafter(SKEWED, uniform))
    assert p_value(pairs(llm, replace(FIXED, max_tokens=3), 1500), exact_pairs(twelve, 1.0)) < 1e-6


@pytest.mark.slow
def test_the_drafter_reports_the_distribution_that_it_drew_from(twelve: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§7.11, vllm#40149: what layer skipping drafts follows the q that it hands over; a greedy draft's is one-hot."""
    llm = load(twelve, acceptance="rejection", **MANY)
    drafter, original = llm.engine._drafter, llm.engine._drafter.draft
    made: dict[int, list[Draft]] = defaultdict(list)

    def draft(plan: Seq[Work]) -> list[Draft]:
        drafts = original(plan)
        for work, one in zip(plan, drafts, strict=True):
            if one:
                made[work.sequence.tokens[-1]].append(one)
        return drafts

    monkeypatch.setattr(drafter, "draft", draft)
    pairs(llm, replace(FIXED, max_tokens=3, max_draft_tokens=1, top_p=0.9), 2000)
    common = [drafts for drafts in made.values() if len(drafts) > 200]
    assert len(common) >= 2
    for drafts in common:
        assert drafts[0].probs is not None and drafts[0].probs[0] is not None
        assert p_value([one.token_ids[0] for one in drafts], drafts[0].probs[0]) > 1e-3
    made.clear()
    llm.generate([PROMPT], replace(FIXED, temperature=0.0))
    for one in (one for drafts in made.values() for one in drafts):
        assert one.probs is not None
        for token, q in zip(one.token_ids, one.probs, strict=True):
            assert q is not None and q.tolist() == [float(token == other) for other in range(VOCABULARY)]
    assert made


@pytest.mark.parametrize("speculation", ["off", "fixed"])
@pytest.mark.parametrize("acceptance", RULES)
def test_the_same_seed_gives_the_same_answer_and_another_seed_another(
    twelve: Path, acceptance: str, speculation: str
) -> None:
    """§7.15, vllm#6038, #13196: a request's seed is neither ignored nor without effect."""
    llm = load(twelve, acceptance=acceptance)

    def answer(seed: int) -> list[int]:
        return llm.generate([PROMPT], replace(FIXED, speculation=speculation, seed=seed))[0].token_ids

    assert answer(42) == answer(42)
    assert len({tuple(answer(seed)) for seed in range(42, 50)}) == 8


class KeepsAll(LayerSet):
    """Skips nothing and drafts all the same: q == p."""

    def __bool__(self) -> bool:
        return True


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("acceptance", RULES)
def test_a_draft_by_all_layers_is_accepted_whole(
    twelve: Path, acceptance: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§2, transformers' _speculative_sampling: p == q leaves no residual to divide by or to draw from."""
    llm = load(twelve, acceptance=acceptance)
    original = llm.engine._drafter.draft

    def draft(plan: Seq[Work]) -> list[Draft]:
        for work in plan:
            work.sequence.layer_set = KeepsAll(5)
        return original(plan)

    monkeypatch.setattr(llm.engine._drafter, "draft", draft)
    [out] = llm.generate([PROMPT], replace(FIXED, max_tokens=25, temperature=temperature, seed=1))
    assert (out.stats.draft_tokens, out.stats.acceptance_rate, out.stats.rounds) == (20, 1.0, 4)


def test_a_model_that_skips_nothing_decodes_plainly(twelve: Path) -> None:
    """§2: an empty layer set is no reason to draft with the whole model."""
    off, fixed = (
        load(twelve, skip_ratio=0.0).generate([PROMPT], replace(FIXED, speculation=mode, seed=2))[0]
        for mode in ("off", "fixed")
    )
    assert (fixed.token_ids, fixed.stats.draft_tokens) == (off.token_ids, 0)


@pytest.mark.parametrize("setting", [{"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}], ids=str)
@pytest.mark.parametrize("acceptance", RULES)
def test_one_token_left_is_greedy_decoding(twelve: Path, acceptance: str, setting: dict[str, Any]) -> None:
    """§2, ten siblings of one token: where the filters leave a single token, T=5 is T=0."""
    llm = load(twelve, acceptance=acceptance)
    greedy = llm.generate([PROMPT], replace(FIXED, speculation="off", temperature=0.0))[0].token_ids
    out = llm.generate([PROMPT], replace(FIXED, temperature=5.0, seed=3, **setting))[0]
    assert out.token_ids == greedy
    assert out.stats.draft_tokens > 0


@pytest.mark.parametrize("acceptance", RULES)
def test_a_vocabulary_smaller_than_every_k(
    tmp_path: Path, acceptance: str, transformers_greedy: Callable[[Path, list[int], int], list[int]]
) -> None:
    """§2, vocabulary < 10: top_k and logprobs may ask for more tokens than there are."""
    save_tiny_model(tmp_path, tiny_config("qwen3", vocab_size=6, eos_token_id=None))
    llm = load(tmp_path, acceptance=acceptance)
    greedy = replace(FIXED, temperature=0.0, logprobs=20, top_k=10)
    [out] = llm.generate([PROMPT], greedy)
    assert out.token_ids == transformers_greedy(tmp_path, PROMPT, 24)
    assert [sorted(token for token, _ in one.top) for one in out.logprobs] == [list(range(6))] * 24
    drawn, plain = (
        llm.generate([PROMPT], replace(FIXED, speculation=mode, seed=4, top_k=10, top_p=0.99))[0].token_ids
        for mode in ("fixed", "off")
    )
    if acceptance == "coupled":
        assert drawn == plain
    assert set(drawn) <= set(range(6)) and len(drawn) == 24


def test_a_wrong_draft_never_leaks_a_token_of_no_chance(twelve: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§7.10, vllm#9834: what top_k excludes is neither accepted nor recovered."""
    llm = load(twelve, acceptance="rejection")
    allowed = {
        token for token, _ in llm.generate([PROMPT], replace(FIXED, max_tokens=1, logprobs=2))[0].logprobs[0].top
    }
    monkeypatch.setattr(llm.engine, "_drafter", ScriptedDrafter(lambda _: [0, 1, 2, 6, 7]))
    bias = tuple((token, 50.0) for token in allowed)
    outputs = llm.generate([PROMPT] * 20, [replace(FIXED, seed=n, top_k=2, logit_bias=bias) for n in range(20)])
    assert {token for out in outputs for token in out.token_ids} == allowed
