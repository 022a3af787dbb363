"""The search between rounds: on which positions, and in how much of the time? B14 of the reference, §2."""

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
from swift_backend.speculation import search as module
from swift_backend.speculation.cost_model import CostModel
from swift_backend.speculation.proposals import Proposals
from swift_backend.speculation.search import LEAST_POSITIONS, LONGEST, WINDOW, OnlineSearch
from tests.unit.speculation.scripted_trials import (
    FLAT,
    START,
    STEEP,
    A,
    B,
    C,
    Listed,
    Script,
    costs,
    decode,
    searching,
    text,
)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    made = Script()
    monkeypatch.setattr(module, "try_sets", made)
    return made


@pytest.mark.parametrize(("kv_len", "count"), [(3, 0), (4, 4), (7, 4), (9, 8), (20, 16), (31, 16), (32, 32), (500, 32)])
def test_short_texts_count_from_the_first_token_on(script: Script, kv_len: int, count: int) -> None:
    """B14: there an answer of less than 52 tokens teaches nothing. Prompts count: of these answers one token is known.

    Where rows cost nothing, as many positions are tried as there are.
    """
    search = searching(script, Listed(B), FLAT)
    decode(search, text(kv_len, prompt=kv_len), 1)
    assert [len(positions) for positions, _ in script.trials] == [count] * (count > 0)


def test_positions_are_the_latest_that_the_cache_holds(script: Script) -> None:
    search = searching(script, Listed(B), FLAT)
    decode(search, text(300), 40)
    decode(search, text(10), 40)
    assert all(positions == sorted(set(positions)) for positions, _ in script.trials)
    halves = script.trials[:40], script.trials[40:]
    seen = [set(itertools.chain(*(positions for positions, _ in half))) for half in halves]
    assert seen == [set(range(300 - WINDOW, 300)), set(range(10))]


def test_it_takes_its_share_of_the_time_and_a_trial_at_most_besides(script: Script) -> None:
    noise = random.Random(0)
    search = searching(script, Listed(B, C), share=0.05)
    decoded = took = longest = 0.0
    for _ in range(3000):
        script.takes = noise.choice([0.001, 0.06, 0.5])  # 60 ms are expected
        seconds = noise.choice([0.001, 0.1, 2.0])
        decoded += seconds
        one = search.round_done(text(100), seconds)
        took, longest = took + one, max(longest, one)
        assert took <= 0.05 * decoded + longest
    assert took == pytest.approx(search.seconds) and took > 0.05 * decoded - 0.5
    assert longest == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("model", "count"),
    [(STEEP, 4), (costs(0.03), 4), (costs(0.02), 8), (costs(0.01), 16), (costs(0.005), 32), (FLAT, 32)],
)
def test_a_trial_is_not_expected_to_take_longer_than_a_plain_token_or_so(
    script: Script, model: CostModel, count: int
) -> None:
    decode(searching(script, Listed(B), model, share=1.0), text(200), 3)
    assert [len(positions) for positions, _ in script.trials] == [count] * 3
    assert count == LEAST_POSITIONS or model.seconds(3 * count, 200) <= LONGEST * model.seconds(1, 200)


def test_a_long_context_makes_trials_smaller(script: Script) -> None:
    decode(searching(script, Listed(B), costs(0.01, per_key=1e-6), share=1.0), text(2000), 1)
    assert [len(positions) for positions, _ in script.trials] == [4]


def test_nothing_happens_before_there_is_a_set_or_a_text_or_without_a_share(script: Script) -> None:
    search = searching(script, Listed(B))
    search.incumbent = None
    waiting = text(200)
    waiting.extent = None
    assert search.layer_set is None
    search.suggest(B)
    assert decode(search, text(200), 50) == decode(searching(script, Listed(B)), waiting, 50) == [0.0] * 50
    assert decode(searching(script, Listed(B), share=0.0), text(200), 50) == [0.0] * 50
    assert script.trials == []


def test_on_a_real_model_it_changes_nothing_in_the_cache(tiny_model: Callable[[str], Path]) -> None:
    runner = SwiftLLM(tiny_model("mistral"), "float32", kv_cache_tokens=128).engine.runner
    tokens = [random.Random(0).randrange(3, 64) for _ in range(41)]
    runner.forward([RowGroup(tokens[:40], 0, START, 0)])
    one = text(40)
    one.tokens = tokens
    before = [both.clone() for both in runner.cache.slots]
    told: list[tuple[int, int]] = []
    search = OnlineSearch(
        runner,
        replace(FLAT, num_layers=7),
        Proposals(range(2, 12), interval=1000),
        most_draft_tokens=5,
        share=0.5,
        on_trial=lambda mask, right, tried, sequence: told.append((right, tried)),
    )
    search.begin_with(0b11110000)
    assert sum(decode(search, one, 30)) == pytest.approx(search.seconds) and search.seconds > 0
    assert len(told) == 60 and {tried for _, tried in told} == {32} and len({right for right, _ in told}) > 2
    assert all(torch.equal(both, old) for both, old in zip(runner.cache.slots, before, strict=True))


def test_what_could_not_be_spent_is_not_spent_at_once_later(script: Script) -> None:
    """A reader would see a stream of trials that others have earned."""
    search, nothing_to_try = searching(script, Listed(B, C), costs(0.01)), text(2)
    decode(search, nothing_to_try, 10_000)
    assert script.trials == []
    assert 0 < sum(decode(search, text(200), 100, seconds=0.0)) < 0.3


def test_a_short_answer_bears_one_trial_and_a_long_one_its_share(script: Script) -> None:
    """By what it has written, not by what it may. A plain token takes 14 ms, a trial is expected to take 60 and takes
    20; others have earned more than enough.
    """
    for written, most in ((50, 0.02), (200, 0.1), (5000, 0.8)):
        script.trials.clear()
        search, one = searching(script, Listed(B, C)), text(written + 20, prompt=20)
        for _ in range(40):
            one.search_seconds += search.round_done(one, 1.0)
        assert one.search_seconds == pytest.approx(min(most, 0.02 * 40), abs=0.021)
        assert one.search_seconds <= max(0.021, module.MOST_OF_A_REQUEST * 0.014 * written)
        assert script.trials


def test_a_trellis_is_for_a_text_that_may_last(script: Script) -> None:
    """It takes 0.35 s here; 5 % of 400 tokens' time are 0.28, of 600 tokens' 0.42."""
    for most_tokens, grows in ((400, False), (600, True)):
        search, one = searching(script, Listed(B, C), open_sublayers=range(2, 10)), text(100, prompt=100)
        one.max_tokens = most_tokens
        search._earned = 10.0
        assert search._time_to_grow(one, A) == grows
