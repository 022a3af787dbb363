"""When and on what a search grows a trellis, and what becomes of what it finds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_backend import SwiftLLM
from swift_backend.batch import RowGroup
from swift_backend.speculation import search as module
from swift_backend.speculation.growing import MOST_CANDIDATES, POSITIONS, Growth, Speed, seconds_to_grow
from swift_backend.speculation.proposals import Proposals
from swift_backend.speculation.search import GROWING_EVERY, MOST_WAITED, OnlineSearch
from tests.unit.speculation.scripted_trials import FLAT, LAYERS, START, STEEP, A, B, C, Listed, Script, searching, text

D = 0b1100000000
OPEN = range(2, 2 * LAYERS - 2)


class Scripted:
    """A growth of so many steps, each of which takes a hundredth of a second, that finds B and C."""

    steps = 6
    script: Script

    def __init__(self, runner: Any, costs: Any, may_skip: range, sequence: Any, positions: Sequence[int]) -> None:
        assert may_skip == OPEN and len(positions) == POSITIONS and max(positions) < sequence.kv_len
        self.sequence = sequence
        self.taken = 0

    @property
    def done(self) -> bool:
        return self.taken >= self.steps

    def step(self) -> None:
        assert not self.done
        self.taken += 1
        self.script.now += 0.01

    def candidates(self, speed: Speed) -> list[int]:
        assert speed(B, 5, POSITIONS) > speed(B, 4, POSITIONS) > 0
        return [B, C]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    made = Script()
    monkeypatch.setattr(module, "try_sets", made)
    monkeypatch.setattr(module, "Growth", Scripted)
    monkeypatch.setattr(Scripted, "script", made, raising=False)
    return made


def growing(search: OnlineSearch) -> Any:
    return search._growth


def rounds_until(happened: Callable[[], object], search: OnlineSearch, *texts: Any, most: int = 3000) -> int:
    """How many rounds of 70 ms it takes."""
    for count in range(most):
        if happened():
            return count
        for one in texts:
            search.round_done(one, 0.07)
    raise AssertionError("it does not happen")


def test_what_it_finds_is_raced_before_anything_else(script: Script) -> None:
    script.rates = {1: {A: 0.5, B: 0.4, C: 0.4, D: 0.4}}
    search = searching(script, Listed(D), open_sublayers=OPEN)
    rounds_until(lambda: len(script.candidates) == 3, search, text(100))
    assert script.candidates == [B, C, D]


def test_it_begins_when_all_of_it_is_earned(script: Script) -> None:
    search = searching(script, Listed(D), open_sublayers=OPEN)
    count = rounds_until(lambda: growing(search), search, text(100))
    whole = seconds_to_grow(STEEP, 101)
    assert (count - 1) * 0.07 * 0.07 < whole <= count * 0.07 * 0.07 + 1e-9
    assert not script.trials, "meanwhile it saves"


def test_it_takes_its_share_of_the_time(script: Script) -> None:
    script.rates = {1: {A: 0.5, B: 0.4, C: 0.4, D: 0.4}}
    search, took = searching(script, Listed(D), open_sublayers=OPEN, share=0.05), 0.0
    for count in range(1, 4000):
        took += search.round_done(text(100) if growing(search) is None else growing(search).sequence, 0.07)
        assert took <= 0.05 * 0.07 * count + 0.1
    assert took == pytest.approx(search.seconds) and took > 0.05 * 0.07 * 4000 - 0.7
    assert script.candidates.count(B) > 1, "another one follows"


def test_another_one_follows_after_some_proposals(script: Script) -> None:
    script.rates = {1: {A: 0.5, B: 0.4, C: 0.4, D: 0.4, 0b100: 0.4}}
    search = searching(script, Listed(D, 0b100), open_sublayers=OPEN)
    rounds_until(lambda: script.candidates.count(B) == 2, search, text(100))
    first = script.candidates.index(B)
    again = script.candidates.index(B, first + 1)
    assert again - first == 2 + GROWING_EVERY


@pytest.mark.parametrize(("kv_len", "max_tokens"), [(POSITIONS - 1, 500), (100, 20)])
def test_a_text_too_short_or_soon_over_is_for_trials(script: Script, kv_len: int, max_tokens: int) -> None:
    """Where all answers are short, somebody has to be tried all the same."""
    script.rates = {1: {A: 0.5, D: 0.4}}
    search, short = searching(script, Listed(D), open_sublayers=OPEN), text(kv_len)
    short.max_tokens = short.num_output_tokens + max_tokens
    for _ in range(200):
        search.round_done(short, 0.07)
    assert growing(search) is None and set(script.candidates) == {D} and len(script.trials) > 5


def test_a_text_that_ends_takes_its_growth_along(script: Script) -> None:
    """Its place in the cache is another's then."""
    search, one, other = searching(script, Listed(D), open_sublayers=OPEN), text(100), text(100)
    rounds_until(lambda: growing(search), search, one)
    search.forget(other)
    assert growing(search).sequence is one
    search.forget(one)
    assert growing(search) is None
    rounds_until(lambda: growing(search) is not None and growing(search).sequence is other, search, other)


def test_only_its_own_text_moves_it_on_and_a_silent_one_is_given_up(script: Script) -> None:
    search, silent, other = searching(script, Listed(D), open_sublayers=OPEN), text(100), text(100)
    rounds_until(lambda: growing(search), search, silent)
    taken = growing(search).taken
    for _ in range(MOST_WAITED - 1):
        assert search.round_done(other, 0.0) == 0.0
    assert growing(search).sequence is silent and growing(search).taken == taken
    search.round_done(other, 0.0)
    assert growing(search) is None


def test_nothing_that_it_finds_is_tried_twice_or_for_nothing(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """The incumbent itself, or no set at all."""
    monkeypatch.setattr(Scripted, "candidates", lambda self, speed: [A, 0])
    search = searching(script, Listed(D), open_sublayers=OPEN)
    rounds_until(lambda: script.candidates, search, text(100))
    assert script.candidates == [D]


def test_on_a_real_model(tiny_model: Callable[[str], Path]) -> None:
    """What it finds spares the ends and leaves something out; the cache is as it was."""
    runner = SwiftLLM(tiny_model("mistral"), "float32", kv_cache_tokens=128).engine.runner
    tokens = [random.Random(0).randrange(3, 64) for _ in range(41)]
    runner.forward([RowGroup(tokens[:40], 0, START, 0)])
    one, layers = text(40), runner.decoder.config.num_layers
    one.tokens = tokens
    before = [both.clone() for both in runner.cache.slots]
    costs = replace(FLAT, num_layers=layers)
    growth = Growth(runner, costs, range(2, 2 * layers - 2), one, range(30, 30 + POSITIONS))
    steps = 0
    while not growth.done:
        growth.step()
        steps += 1

    def speed(mask: int, right: int, tried: int) -> float:
        assert 0 <= right <= tried == POSITIONS
        return -float(mask)  # whatever it is, it decides

    found = growth.candidates(speed)
    assert found == sorted(path.skip_mask for path in growth._trellis.paths)[:MOST_CANDIDATES]
    assert steps > 2 * layers and 1 <= len(found) <= MOST_CANDIDATES and len(set(found)) == len(found)
    assert all(mask and mask & 0b11 == 0 == mask >> (2 * layers - 2) for mask in found)
    assert all(torch.equal(both, old) for both, old in zip(runner.cache.slots, before, strict=True))
    search = OnlineSearch(
        runner, costs, Proposals(range(2, 12)), most_draft_tokens=5, share=0.5, open_sublayers=range(2, 2 * layers - 2)
    )
    search.begin_with(0b11110000)
    one.max_tokens = 500
    rounds_until(lambda: search._grown[1], search, one)
    assert search.seconds > 0
    assert all(torch.equal(both, old) for both, old in zip(runner.cache.slots, before, strict=True))
