"""Public reports about penalties, bias and bans inside a drafted block (reference §7, cases 12–14).

Every row of a block must be processed as if the tokens drafted before it were the answer already. The model repeats its
last word for ever where nothing forbids it, so these settings change almost every token.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_backend import InvalidRequest, SamplingParams, SwiftLLM
from swift_backend.scheduler import Work
from swift_backend.sequence import Sequence
from swift_backend.speculation.draft import Draft
from tests.conftest import save_tiny_model, tiny_config
from tests.engine.scripted_drafts import Script, ScriptedDrafter, answering, load

A = [7, 7, 7]
MAX_TOKENS = 24
FIXED = SamplingParams(max_tokens=MAX_TOKENS, speculation="fixed", confidence_threshold=0.0, ignore_eos=True)
PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 2.0},
    {"presence_penalty": 1.0},
    {"frequency_penalty": 0.3},
    {"presence_penalty": -1.0, "frequency_penalty": 0.1, "repetition_penalty": 1.2},
    {"repetition_penalty": 2.0, "temperature": 1.0, "top_p": 0.9, "seed": 7},
    {"presence_penalty": 2.0, "frequency_penalty": 2.0, "temperature": 0.5, "top_k": 8, "seed": 7},
    {"repetition_penalty": 0.5, "temperature": 2.0, "seed": 7},
]
BIASES: list[dict[str, Any]] = [
    {"logit_bias": {7: -100.0}},
    {"logit_bias": {7: -0.5, 0: 100.0}},
    {"logit_bias": {9: 0.4, 7: 0.3}, "frequency_penalty": 0.5},
    {"logit_bias": {9: 0.4, 7: 0.3}, "temperature": 1.0, "seed": 3},
]
BANS: list[dict[str, Any]] = [
    {"bad_words": ["w7"]},
    {"bad_words": ["w7 w7"]},
    {"bad_words": ["w7 w7 w7 w7 w7 w7", "w7 w7 w7 w7 w7 w35"]},
    {"bad_words": ["w7 w7"], "temperature": 0.3, "seed": 5},
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The head is the embedding and the layers do little: the likeliest next token is the last one."""
    return save_tiny_model(tmp_path_factory.mktemp("parrot"), tiny_config("llama", initializer_range=0.02))


@pytest.fixture(scope="module")
def llm(directory: Path) -> SwiftLLM:
    return load(directory)


@pytest.fixture(scope="module")
def rejecting(directory: Path) -> SwiftLLM:
    return load(directory, acceptance="rejection")


def repeating(sequence: Sequence) -> list[int]:
    """Drafts the last token over and over, as prompt lookup would."""
    return [sequence.tokens[-1]] * 5


def answer(llm: SwiftLLM, params: SamplingParams) -> list[int]:
    return llm.generate([A], params)[0].token_ids


def check_every_draft(llm: SwiftLLM, params: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The plain answer, after a check that no draft changes it: the engine's own, a right one, wrong ones."""
    off = answer(llm, replace(params, speculation="off"))
    assert off != [7] * MAX_TOKENS  # the setting does something
    assert answer(llm, params) == off
    scripts: list[Script] = [answering(off), answering(off, 2), answering(off, 4), repeating]
    for script in scripts:
        drafter = ScriptedDrafter(script)
        monkeypatch.setattr(llm.engine, "_drafter", drafter)
        assert answer(llm, params) == off
        if script is scripts[0]:
            assert drafter.lengths == [5, 5, 5, 4]  # accepted whole: four rounds bring 23 tokens
    monkeypatch.undo()
    return off


def test_the_model_is_a_parrot(llm: SwiftLLM) -> None:
    """Otherwise the tests below would show little."""
    assert answer(llm, replace(FIXED, speculation="off")) == [7] * MAX_TOKENS


@pytest.mark.parametrize("setting", PENALTIES, ids=str)
def test_penalties_see_the_earlier_tokens_of_the_same_block(
    directory: Path, llm: SwiftLLM, setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.12, vllm#6718, mlx-node PR#11: prompt "a a a" with penalties is answered as without drafts."""
    off = check_every_draft(llm, replace(FIXED, **setting), monkeypatch)
    if set(setting) == {"repetition_penalty"}:
        assert off == transformers_answer(directory, **setting)


@pytest.mark.parametrize("setting", PENALTIES[:4], ids=str)
def test_penalties_hold_under_rejection(
    llm: SwiftLLM, rejecting: SwiftLLM, setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.12, vllm#6718: the same where drafts are accepted with min(1, p/q); p and q see the block alike."""
    off = answer(llm, replace(FIXED, speculation="off", **setting))
    params = replace(FIXED, **setting)
    assert answer(rejecting, params) == off
    monkeypatch.setattr(rejecting.engine, "_drafter", ScriptedDrafter(repeating))
    assert answer(rejecting, params) == off


@pytest.mark.parametrize("setting", BIASES, ids=str)
def test_logit_bias_holds_in_every_row_of_a_block(
    llm: SwiftLLM, setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.13, vLLM's apply_with_spec_decode: the bias is not for the block's first row only."""
    off = check_every_draft(llm, replace(FIXED, **setting), monkeypatch)
    if setting["logit_bias"].get(7) == -100.0:
        assert 7 not in off


@pytest.mark.parametrize("setting", BANS, ids=str)
def test_bad_words_that_complete_inside_a_block_are_masked(
    directory: Path, llm: SwiftLLM, setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.13, vLLM's apply_with_spec_decode: a word's first tokens may be drafted and its last must not follow."""
    off = check_every_draft(llm, replace(FIXED, **setting), monkeypatch)
    words = [[int(one[1:]) for one in word.split()] for word in setting["bad_words"]]
    history = A + off
    for word in words:
        ends = range(max(len(A), len(word) - 1), len(history))
        assert not any(history[end - len(word) + 1 : end + 1] == word for end in ends)
    if "temperature" not in setting:
        assert off == transformers_answer(directory, bad_words_ids=words)


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_drafts_follow_the_same_processors(
    llm: SwiftLLM, rejecting: SwiftLLM, acceptance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.12, vllm#6718: a draft that forgot the penalty would repeat the word and be rejected at every place."""
    engine = (llm if acceptance == "coupled" else rejecting).engine
    made: list[Draft] = []
    original = engine._drafter.draft

    def draft(plan: list[Work]) -> list[Draft]:
        drafts = original(plan)
        made.extend(one for one in drafts if one)
        return drafts

    monkeypatch.setattr(engine._drafter, "draft", draft)
    answer(llm if acceptance == "coupled" else rejecting, replace(FIXED, presence_penalty=2.0))
    assert sum(len(one) for one in made) > 40
    assert all(len(set(one.token_ids)) == len(one) for one in made)


@pytest.mark.parametrize("key", ["guided_json", "guided_regex", "guided_grammar", "grammar", "response_format"])
def test_a_grammar_is_refused_by_name(key: str) -> None:
    """§7.14, vllm#9423, #11484, TRT-LLM#7878, sglang PR#21723: no grammars, so no illegal tokens; and it is said."""
    with pytest.raises(InvalidRequest, match=f"^{key} is not a sampling parameter") as caught:
        SamplingParams.from_mapping({"max_tokens": 5, key: {"type": "object"}})
    assert caught.value.field == key


def transformers_answer(directory: Path, **settings: Any) -> list[int]:
    """What transformers adds to "a a a", float32, greedily, where nothing ends the answer."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = torch.tensor([A])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=MAX_TOKENS,
        pad_token_id=0,
        eos_token_id=None,
        **settings,
    )
    return [int(token) for token in out[0, len(A) :]]
