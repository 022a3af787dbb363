"""A search whose trials a test scripts, on texts without a model."""

from __future__ import annotations

import itertools
import random
from typing import Any, cast

import torch

from swift_backend import SamplingParams
from swift_backend.runner import Runner
from swift_backend.sequence import Extent, Request, Sequence
from swift_backend.speculation.cost_model import CostModel, RowCosts
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.matchness import Trial
from swift_backend.speculation.proposals import Proposals
from swift_backend.speculation.search import OnlineSearch

LAYERS = 6
A, B, C = 0b1100, 0b110000, 0b11000000
WIDE = 0b11110000  # leaves out twice as much
START = 64


def costs(each_row: float, per_key: float = 0.0) -> CostModel:
    """14 ms for a row, and for every further one so many times as much."""
    part = RowCosts((1, 101), (0.001, 0.001 * (1 + 100 * each_row)))
    return CostModel(LAYERS, part, part, part, part, per_key)


STEEP, FLAT = costs(0.3), costs(0.0)


class Script:
    """Stands in for try_sets: rates[topic][mask] says how often a mask is right; a text's topic is its first token.

    A number is the share of positions, always the same ones, or drawn where there is luck; a string says it of one
    position of a trial after another. Each trial takes so many seconds.
    """

    def __init__(self) -> None:
        self.rates: dict[int, dict[int, float | str]] = {}
        self.trials: list[tuple[list[int], list[int]]] = []
        self.luck: random.Random | None = None
        self.now, self.takes = 0.0, 0.02

    def __call__(self, runner: Any, start: int, tokens: list[int], positions: list[int], skips: list[int]) -> Trial:
        assert start == START
        self.now += self.takes
        self.trials.append((positions, skips))
        rates = self.rates.get(tokens[0], {})
        rows = [[self._right(rates.get(skip, 0.0), i, at) for i, at in enumerate(positions)] for skip in skips]
        return Trial(torch.tensor(rows), torch.ones(len(skips), len(positions)))

    def _right(self, rate: float | str, index: int, position: int) -> bool:
        if isinstance(rate, str):
            return rate[index % len(rate)] == "1"
        return self.luck.random() < rate if self.luck else position % 10 < 10 * rate

    def clock(self) -> float:
        return self.now

    @property
    def candidates(self) -> list[int]:
        """Who was tried, one after another."""
        return [mask for mask, _ in itertools.groupby(skips[1] for _, skips in self.trials)]


class Listed:
    """Proposes these masks in turn, and keeps what it is told."""

    def __init__(self, *masks: int) -> None:
        self._masks = itertools.cycle(masks)
        self.noted: list[tuple[int, float]] = []

    def propose(self, incumbent: int) -> int:
        return next(self._masks)

    def note(self, skip_mask: int, score: float) -> None:
        self.noted.append((skip_mask, score))


def searching(script: Script, proposals: Listed | Proposals, model: CostModel = STEEP, **options: Any) -> OnlineSearch:
    """A search that begins with A; 70 ms of a decoded second are for it, and four positions take 60."""
    given = {"most_draft_tokens": 5, "share": 0.07, "clock": script.clock, **options}
    made = OnlineSearch(cast(Runner, None), model, cast(Proposals, proposals), **given)
    made.begin_with(A)
    return made


def text(kv_len: int, topic: int = 1, prompt: int | None = None, skip_mask: int | None = None) -> Sequence:
    """So many tokens in the cache, and the newest; thousands may follow. skip_mask: of the set that it drafts with."""
    tokens = [topic] * (kv_len + 1)
    made = Sequence(Request("r", tokens[:prompt], SamplingParams(speculation="search"), print), 5000, seed=0)
    made.layer_set = None if skip_mask is None else LayerSet(LAYERS, skip_mask)
    made.tokens, made.extent = tokens, Extent(START, 512, kv_len)
    return made


def decode(search: OnlineSearch, sequence: Sequence, rounds: int, seconds: float = 1.0) -> list[float]:
    return [search.round_done(sequence, seconds) for _ in range(rounds)]
