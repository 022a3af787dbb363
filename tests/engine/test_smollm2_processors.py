"""What SmolLM2's logits become: transformers' processors on the same logits agree, and drafts change nothing of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.generation import logits_process as hf

from swift_backend import SamplingParams, SwiftLLM
from swift_backend.batch import RowGroup
from swift_backend.processors import make_processors, process
from swift_backend.sampling import Draw, probabilities

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NUM_CONTEXTS = 8
NUM_OUTPUT, NUM_DRAFTED = 20, 5  # the last tokens of a context are its answer so far, the last of those a draft
NEUTRAL: dict[str, Any] = {"temperature": 1.0}
ALONE: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"logit_bias": True},
    {"bad_words": True},
    {"min_tokens": NUM_OUTPUT + 1},
    {"min_tokens": NUM_OUTPUT},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 50},
    {"top_p": 0.3},
    {"top_p": 0.95},
    {"min_p": 0.05},
]
TOGETHER: list[dict[str, Any]] = [
    {
        "repetition_penalty": 1.2,
        "logit_bias": True,
        "bad_words": True,
        "min_tokens": NUM_OUTPUT + 1,
        "temperature": 1.3,
        "top_k": 60,
        "top_p": 0.9,
        "min_p": 0.02,
    },
    {"repetition_penalty": 0.8, "bad_words": True, "temperature": 0.6, "top_p": 0.8},
    {"repetition_penalty": 1.5, "logit_bias": True, "temperature": 2.0, "top_k": 40, "min_p": 0.1},
]


@pytest.fixture(scope="module")
def llm(smollm2_float32: Path) -> SwiftLLM:
    """Only the middle 8 of 30 layers may be skipped, and are: with one layer set a hundred requests draft together."""
    options = {
        "limit_drafts": False,
        "kv_cache_tokens": 8192,
        "max_running": 100,
        "protected_layers": 11,
        "skip_ratio": 0.27,
    }
    return SwiftLLM(str(smollm2_float32), dtype="float32", **options)


@pytest.fixture(scope="module")
def contexts(llm: SwiftLLM, shared_prompts: list[dict[str, Any]]) -> list[list[int]]:
    return [llm.engine.tokenizer.encode(row["turns"][0])[:120] for row in shared_prompts[:NUM_CONTEXTS]]


@pytest.fixture(scope="module")
def logits(llm: SwiftLLM, contexts: list[list[int]]) -> torch.Tensor:
    """The model's own, float32 [contexts, vocab]."""
    cache, rows = llm.engine.runner.cache, []
    for context in contexts:
        extent = cache.reserve(len(context))
        assert extent is not None
        rows.append(llm.engine.runner.forward([RowGroup(context, 0, extent.start, 1)]))
        cache.release(extent)
    return torch.cat(rows)


def settings_of(setting: dict[str, Any], context: list[int], row: torch.Tensor) -> dict[str, Any]:
    """The setting's numbers, with the context's own tokens in place of True.

    Biased: the likeliest tokens and some of the context's. Bad: the likeliest token, a pair that it would complete, and
    one that it would not.
    """
    best = row.topk(6).indices.tolist()
    chosen = dict(setting)
    if "logit_bias" in setting:
        chosen["logit_bias"] = {best[0]: -7.5, best[3]: 1.25, context[-1]: 2.0, context[0]: -100.0, 0: 0.5}
    if "bad_words" in setting:
        wrong = next(token for token in range(100, 200) if token != context[-1])
        chosen["bad_words"] = ((best[0],), (*context[-3:], best[1]), (wrong, best[2]), (context[-1], best[4]))
    return {**NEUTRAL, **chosen}


def ours(
    logits: torch.Tensor, contexts: list[list[int]], chosen: list[dict[str, Any]], eos: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The processed logits and the probabilities of all contexts in one go, each with its own settings."""
    draws = []
    for context, one in zip(contexts, chosen, strict=True):
        params = SamplingParams(**{key: value for key, value in one.items() if key != "bad_words"})
        processors = make_processors(params, context[:-NUM_OUTPUT], one.get("bad_words", ()), eos)
        if processors is not None:
            for token in context[-NUM_OUTPUT:-NUM_DRAFTED]:
                processors.append(token)
        drafted = tuple(context[-NUM_DRAFTED:])
        draws.append(Draw(params, 0, len(context), processors=processors, drafted=drafted))
    processed = logits.clone()
    process(processed, [(draw.processors, draw.drafted) for draw in draws])
    return processed, probabilities(logits, draws)


def theirs(row: torch.Tensor, context: list[int], one: dict[str, Any], eos: list[int]) -> tuple[torch.Tensor, ...]:
    """The same by transformers, for one context, in float64."""
    prompt_length = len(context) - NUM_OUTPUT
    before: list[Any] = []
    if "repetition_penalty" in one:
        before.append(hf.RepetitionPenaltyLogitsProcessor(one["repetition_penalty"]))
    if "logit_bias" in one:
        before.append(hf.SequenceBiasLogitsProcessor([[[token], bias] for token, bias in one["logit_bias"].items()]))
    if "bad_words" in one:
        before.append(hf.NoBadWordsLogitsProcessor([list(word) for word in one["bad_words"]]))
    if "min_tokens" in one:
        before.append(hf.MinNewTokensLengthLogitsProcessor(prompt_length, one["min_tokens"], eos))
    after: list[Any] = [hf.TemperatureLogitsWarper(one["temperature"])]
    if "top_k" in one:
        after.append(hf.TopKLogitsWarper(one["top_k"]))
    if "top_p" in one:
        after.append(hf.TopPLogitsWarper(one["top_p"]))
    if "min_p" in one:
        after.append(hf.MinPLogitsWarper(one["min_p"]))
    ids, scores = torch.tensor([context]), row[None].double()
    for processor in before:
        scores = processor(ids, scores)
    processed = scores
    for warper in after:
        scores = warper(ids, scores)
    return processed[0], torch.softmax(scores[0], dim=-1)


@pytest.mark.parametrize("setting", [*ALONE, *TOGETHER], ids=lambda one: "+".join(f"{k}={v}" for k, v in one.items()))
def test_processors_agree_with_transformers(
    llm: SwiftLLM, contexts: list[list[int]], logits: torch.Tensor, setting: dict[str, Any]
) -> None:
    """In the order penalties, logit_bias, bad_words, min_tokens, temperature, top_k, top_p, min_p."""
    eos = [*llm.engine.runner.decoder.config.eos_ids]
    chosen = [settings_of(setting, context, row) for context, row in zip(contexts, logits, strict=True)]
    processed, probs = ours(logits, contexts, chosen, eos)
    changed = 0
    for i, (context, one) in enumerate(zip(contexts, chosen, strict=True)):
        expected, expected_probs = theirs(logits[i], context, one, eos)
        torch.testing.assert_close(processed[i].double(), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(probs[i], expected_probs, atol=1e-5, rtol=0)
        assert torch.equal(probs[i] > 0, expected_probs > 0)
        changed += not torch.allclose(probs[i], torch.softmax(logits[i].double(), -1), atol=1e-9, rtol=0)
    assert changed == (0 if setting == {"min_tokens": NUM_OUTPUT} else NUM_CONTEXTS)


@pytest.fixture(scope="module")
def fifty(llm: SwiftLLM, shared_prompts: list[dict[str, Any]]) -> list[list[int]]:
    """Prompts of any category, whole, that are short enough for a hundred answers in a minute."""
    encoded = (llm.engine.tokenizer.encode(row["turns"][0]) for row in shared_prompts)
    short = [ids for ids in encoded if len(ids) <= 40]
    assert len(short) >= 50
    return short[:50]


def test_processed_answers_are_the_same_with_and_without_drafts(llm: SwiftLLM, fifty: list[list[int]]) -> None:
    """Fifty prompts, greedily with penalties and sampled with a seed, a hundred requests in one batch."""
    off = SamplingParams(max_tokens=12, speculation="off", repetition_penalty=1.2)
    greedy = replace(off, presence_penalty=0.5, frequency_penalty=0.2)
    spaces = tuple(llm.engine.tokenizer.encode(" the and I"))
    biased = {**dict.fromkeys(spaces, 1.5), 198: -3.0}
    sampled = [replace(off, temperature=0.8, top_p=0.9, seed=n, logit_bias=biased) for n in range(50)]  # type: ignore[arg-type]
    params = [greedy] * 50 + sampled
    fixed = [replace(one, speculation="fixed", confidence_threshold=0.15) for one in params]
    expected = llm.generate(fifty * 2, params)
    outputs = llm.generate(fifty * 2, fixed)
    assert len({out.stats.skipped_layers for out in outputs}) == 1
    assert [(out.token_ids, out.text) for out in outputs] == [(out.token_ids, out.text) for out in expected]
    for half in (outputs[:50], outputs[50:]):
        drafted = sum(out.stats.draft_tokens for out in half)
        assert 10 < sum(out.stats.accepted_draft_tokens for out in half) < drafted - 10
