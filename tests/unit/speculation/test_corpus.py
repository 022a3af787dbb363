"""Texts in the cache are what the full model computed, and trials on them are of their answers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swift_backend import SwiftLLM
from swift_backend.batch import RowGroup
from swift_backend.inspect import prompt_profile
from swift_backend.runner import Runner
from swift_backend.speculation.corpus import Corpus, Text
from swift_backend.speculation.similarity import Profile

PROMPTS = [[5, 9, 17, 3, 44, 21, 8], [60, 33, 12]]
ANSWERS = [[12, 7, 5, 19, 28, 40, 2, 51, 9, 9, 30], [44, 3]]


@pytest.fixture(params=["llama", "mistral"])
def runner(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Runner:
    """Of a model with, and of one without a window; the cache has room for 128 tokens."""
    return SwiftLLM(tiny_model(request.param), "float32", kv_cache_tokens=128).engine.runner


@pytest.fixture
def corpus(runner: Runner) -> Corpus:
    """Two texts, the longer one computed in chunks that end neither with its prompt nor with its answer."""
    made = Corpus(runner, chunk=4)
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        assert made.add("any", prompt, answer)
    return made


def states(runner: Runner, start: int, length: int) -> torch.Tensor:
    return torch.stack([both[start : start + length].clone() for both in runner.cache.slots])


def test_the_cache_holds_what_the_full_model_computes(corpus: Corpus) -> None:
    runner = corpus.runner
    assert [text.start for text in corpus.texts] == [0, 32] and runner.cache.tokens_used == 48
    for text, prompt, answer in zip(corpus.texts, PROMPTS, ANSWERS, strict=True):
        assert text.tokens == [*prompt, *answer]
        count = len(text.tokens)
        kept = states(runner, text.start, count)
        runner.forward([RowGroup(text.tokens, 0, 96, 0)])
        torch.testing.assert_close(kept, states(runner, 96, count), rtol=1e-4, atol=1e-4)


def test_the_full_model_always_agrees_with_itself(corpus: Corpus) -> None:
    """Its confidence is that of the pass over the whole text."""
    trials = corpus.trials([0, 0b111111111100], most_positions=50)
    for text, trial in zip(corpus.texts, trials, strict=True):
        logits = corpus.runner.forward([RowGroup(text.tokens, 0, 96, len(text.tokens))])
        sure = torch.softmax(logits, dim=-1).max(dim=-1).values[text.first : -1]
        assert trial.matches.shape == (2, len(text.tokens) - 1 - text.first)
        assert trial.matches[0].all()
        torch.testing.assert_close(trial.confidence[0], sure, rtol=1e-4, atol=1e-4)
    assert not trials[0].matches[1].all(), "a handful of sublayers is not the full model"


def test_trials_of_some_texts(corpus: Corpus) -> None:
    [trial] = corpus.trials([0b1100], 2, texts=corpus.texts[:1])
    assert trial.matches.shape == (1, 2)
    assert [one.matches.shape for one in corpus.trials([0b1100], 5)] == [(1, 5), (1, 2)]


def test_positions_are_those_before_the_answers_tokens() -> None:
    """After the prompt's last token, 4, comes the answer's first; after the last one nothing is known."""
    text = Text("any", [7] * 9, first=4, start=0, profile=Profile(torch.zeros(3)))
    assert list(text.positions(24)) == [4, 5, 6, 7]
    assert list(text.positions(2)) == [4, 5]
    assert [list(replace(text, phase=phase).positions(2)) for phase in (0.5, 1.0)] == [[5, 6], [6, 7]]
    assert list(replace(text, phase=0.7).positions(24)) == [4, 5, 6, 7]


def test_few_positions_are_of_all_parts_of_answers(tiny_model: Callable[[str], Path]) -> None:
    """How answers begin says little of what follows."""
    made = Corpus(SwiftLLM(tiny_model("llama"), "float32", kv_cache_tokens=512).engine.runner)
    for _ in range(8):
        assert made.add("any", [5, 9], list(range(3, 33)))
    begins = sorted(text.positions(6).start - text.first for text in made.texts)
    assert begins[0] == 0 and begins[-1] >= 20 and all(b - a <= 6 for a, b in itertools.pairwise(begins))


def test_a_profile_is_that_of_the_prompt_alone(corpus: Corpus) -> None:
    """As a request's is, to which it will be compared; its chunks count by their rows of the prompt."""
    expected = [prompt_profile(corpus.runner, prompt).values for prompt in PROMPTS]
    for text, values in zip(corpus.texts, expected, strict=True):
        torch.testing.assert_close(text.profile.values, values, rtol=1e-4, atol=1e-4)


def test_no_room_in_the_cache(corpus: Corpus) -> None:
    """What is there stays, also where it is refused something; what fits still comes in."""
    runner, texts = corpus.runner, list(corpus.texts)
    before = states(runner, 0, 48)
    long = [random.Random(0).randrange(3, 64) for _ in range(90)]
    assert not corpus.add("any", long, [5, 9])
    assert corpus.texts == texts and runner.cache.tokens_used == 48
    assert corpus.add("any", long[:40], [5, 9])
    assert torch.equal(states(runner, 0, 48), before)
    runner.cache.check_integrity()


def test_longer_than_the_models_context(tiny_model: Callable[[str], Path]) -> None:
    """Position 256 is none, though the cache would have slots for it."""
    corpus = Corpus(SwiftLLM(tiny_model("qwen3"), "float32", kv_cache_tokens=1024).engine.runner)
    assert not corpus.add("any", [5] * 200, [9] * 57)
    assert corpus.texts == [] and corpus.runner.cache.tokens_used == 0
    assert corpus.add("any", [5] * 200, [9] * 56)
