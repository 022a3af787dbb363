"""An engine that a test steps by hand, and what each request was told."""

from __future__ import annotations

from collections.abc import Callable

import torch

from swift_backend import SamplingParams
from swift_backend.engine import Engine
from swift_backend.sequence import Output, Request, Sequence


class Stepping:
    """Submits by name, and keeps every output by name."""

    def __init__(self, engine: Engine, after_step: Callable[[Engine], None] = lambda engine: None) -> None:
        self.engine = engine
        self.news: dict[str, list[Output]] = {}
        self._after_step = after_step

    def submit(self, name: str, prompt: list[int], params: SamplingParams) -> None:
        self.news[name] = []
        self.engine.submit(Request(name, prompt, params, self.news[name].append))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.engine.step()
            self._after_step(self.engine)

    def finish(self) -> None:
        """Step until nobody is left; AssertionError when a slot is still somebody's."""
        self.step()
        while not self.engine.idle:
            self.step()
        assert self.engine.runner.cache.tokens_used == 0

    def answer(self, name: str, prompt: list[int], params: SamplingParams) -> Output:
        """The last output of a request that is alone."""
        self.submit(name, prompt, params)
        self.finish()
        return self.last(name)

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.news[name] for token in output.token_ids]

    def last(self, name: str) -> Output:
        """The only final output."""
        [last] = [output for output in self.news[name] if output.finished]
        assert last is self.news[name][-1]
        return last

    def running(self, name: str) -> Sequence:
        [sequence] = [one for one in self.engine._running if one.request.request_id == name]
        return sequence


def poison(engine: Engine) -> None:
    """Put NaN into every slot that holds no committed token: whoever reads one answers nonsense."""
    cache = engine.runner.cache
    committed = torch.zeros(cache.capacity, dtype=torch.bool)
    for extent in cache._extents:
        committed[extent.start : extent.start + extent.length] = True
    for both in cache.slots:
        both[~committed] = torch.nan
