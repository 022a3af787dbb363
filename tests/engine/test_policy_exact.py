"""Whatever a policy decides, and however often it changes its mind, the answer is the full model's."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import pytest

from swift_backend import SamplingParams, SwiftLLM
from swift_backend.speculation import policy as policy_module
from swift_backend.speculation.making import Making, Offer, Step
from swift_backend.speculation.policy import Policy
from swift_backend.speculation.row_choice import Candidate
from tests.conftest import TINY_VOCABULARY
from tests.engine.scripted_drafts import load

MODES = ("auto", "skip", "ngram")
MAX_TOKENS = 40
SAMPLED = {"temperature": 1.0, "top_k": 40, "frequency_penalty": 0.3, "logit_bias": {50: 3.0, 60: -100.0}}


def prompts() -> list[list[int]]:
    """One repeats itself."""
    rng = random.Random(8)
    few = [[rng.randrange(2, TINY_VOCABULARY) for _ in range(n)] for n in (2, 15, 60)]
    return [*few, few[1] * 3]


SHORT_HEAD = {"draft_vocabulary": 16, "ngram_store_tokens": 400}


@pytest.fixture(
    scope="module",
    params=[
        ("mistral", {}),
        ("llama", SHORT_HEAD),
        ("llama", {"siblings": False}),
        pytest.param(("qwen3", {}), marks=pytest.mark.slow),
        pytest.param(("mistral", SHORT_HEAD), marks=pytest.mark.slow),
    ],
    ids=lambda param: "-".join([param[0], *param[1]]),
)
def llm(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> SwiftLLM:
    """With a head that knows a quarter of the vocabulary, or the whole one; drafts with or without alternatives."""
    family, options = request.param
    made = load(tiny_model(family), prefix_cache=False, limit_drafts=True, search_share=0.2, **options)
    assert (made.engine._draft_head._passes.short_head is not None) == (options == SHORT_HEAD)
    return made


@pytest.fixture(params=[{}, SAMPLED], ids=["greedy", "sampled"])
def sampling(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def params(mode: str, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, speculation=mode, seed=5, **more)


class AtRandom(Policy):
    """Decides everything by chance: who drafts, with what was found or without, and how far."""

    rng = random.Random(9)

    def _offer(self, making: Making, skip_mask: int, step: Step, sharing: int) -> Offer:
        return Offer(making, self.rng.random(), self.rng.randint(0, min(len(making.found), making.path.room - 1)))

    def _worth_a_pass(self, offers: Seq[Offer], skip_mask: int, step: Step) -> list[Offer]:
        return [offer for offer in offers if self.rng.random() < 0.6]

    def _going_on(self, makings: Seq[Making], skip_mask: int, step: Step) -> list[Making]:
        return [making for making in makings if making.path.room and self.rng.random() < 0.6]


def some_at_random(candidates: Seq[Candidate], seconds: Seq[float], price: float) -> list[Candidate]:
    """As many as chance says, predecessors before what follows them."""
    ranked = sorted(candidates, key=lambda one: (one.owner, one.depth, one.sibling))
    ranked = ranked if AtRandom.rng.random() < 0.5 else sorted(ranked, key=lambda one: (one.depth, one.sibling))
    return ranked[: AtRandom.rng.randint(0, min(len(ranked), len(seconds) - 1))]


def decide_at_random(llm: SwiftLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "worth_verifying", some_at_random)
    monkeypatch.setattr(policy_module, "LEAST_CHANCE", -1e9)  # however little it may be worth
    monkeypatch.setattr(llm.engine._policy, "__class__", AtRandom)


@pytest.mark.parametrize("mode", MODES)
def test_each_way_alone_and_in_a_batch(llm: SwiftLLM, sampling: dict[str, Any], mode: str) -> None:
    plain = [out.token_ids for out in llm.generate(prompts(), params("off", **sampling))]
    together = llm.generate(prompts(), params(mode, **sampling))
    alone = [llm.generate([prompt], params(mode, **sampling))[0] for prompt in prompts()]
    assert [out.token_ids for out in together] == [out.token_ids for out in alone] == plain


@pytest.mark.parametrize("mode", MODES)
def test_a_policy_that_decides_by_chance(
    llm: SwiftLLM, sampling: dict[str, Any], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [out.token_ids for out in llm.generate(prompts(), params("off", **sampling))]
    decide_at_random(llm, monkeypatch)
    drafted: set[str] = set()
    for _ in range(2):
        together = llm.generate(prompts(), params(mode, **sampling))
        alone = [llm.generate([prompt], params(mode, **sampling))[0] for prompt in prompts()]
        assert [out.token_ids for out in together] == [out.token_ids for out in alone] == plain
        drafted |= {drafter for out in (*together, *alone) for drafter, count in out.stats.drafted.items() if count}
    drafters = {"auto": {"ngram", "layer_skip", "sibling"}, "skip": {"layer_skip", "sibling"}}.get(mode, {"ngram"})
    assert drafted == (drafters if llm.engine.config.siblings else drafters - {"sibling"})


def test_drafters_by_chance_in_one_batch(
    llm: SwiftLLM, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside those that no policy decides."""
    modes = ["off", *MODES, "fixed", "similarity"]
    [plain] = llm.generate([prompts()[3]], params("off", **sampling))
    decide_at_random(llm, monkeypatch)
    outputs = llm.generate([prompts()[3]] * len(modes), [params(mode, **sampling) for mode in modes])
    assert [out.token_ids for out in outputs] == [plain.token_ids] * len(modes)


@pytest.mark.parametrize("most", [0, 1, 2])
def test_no_more_is_drafted_than_the_request_allows(llm: SwiftLLM, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Siblings are drafted tokens, too."""
    decide_at_random(llm, monkeypatch)
    [out] = llm.generate([prompts()[3]], params("auto", max_draft_tokens=most))
    assert out.stats.draft_tokens <= most * out.stats.rounds
    assert (out.stats.draft_tokens > 0) == (most > 0)
    assert (out.stats.rounds_without_draft == out.stats.rounds) == (most == 0)


@pytest.mark.parametrize("mode", MODES)
def test_by_rejection_greedy_answers_are_the_same(tiny_model: Callable[[str], Path], mode: str) -> None:
    llm = load(tiny_model("llama"), acceptance="rejection", prefix_cache=False)
    plain = [out.token_ids for out in llm.generate(prompts(), params("off"))]
    outputs = llm.generate(prompts(), params(mode))
    assert [out.token_ids for out in outputs] == plain
    assert sum(out.stats.draft_tokens for out in outputs) > 0


def test_figures_of_drafters_add_up(llm: SwiftLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted tokens are those of the answer that a drafter proposed; all others are verified ones."""
    decide_at_random(llm, monkeypatch)
    for out in llm.generate(prompts(), params("auto")):
        stats = out.stats
        assert sum(stats.drafted.values()) == stats.draft_tokens
        assert sum(stats.accepted.values()) == stats.accepted_draft_tokens
        origins = {name: stats.provenance.count(name) for name in set(stats.provenance)}
        verified = origins.pop("verified")
        assert origins == {name: count for name, count in stats.accepted.items() if count}
        assert len(stats.provenance) == len(out.token_ids) == verified + stats.accepted_draft_tokens
        assert verified == stats.rounds + 1 or out.finish_reason == "length"
        assert stats.decide_seconds > 0
