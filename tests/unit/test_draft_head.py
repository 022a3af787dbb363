"""The short head follows the traffic, when nobody waits, and is given up where there is no memory for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swift_backend import SwiftLLM
from swift_backend.draft_head import BUSY, LEAST_NEWS, DraftHead
from swift_backend.model.short_head import ShortHead
from swift_backend.speculation.draft_vocabulary import TokenCounts


@pytest.fixture(scope="module")
def llm(tiny_model: Callable[[str], Path]) -> SwiftLLM:
    return SwiftLLM(str(tiny_model("llama")), "float32", kv_cache_tokens=64, draft_vocabulary=8)


def head(llm: SwiftLLM, tokens: TokenCounts, size: int = 4) -> DraftHead:
    passes = llm.engine._draft_head._passes
    return DraftHead(passes, llm.engine.runner, llm.engine.costs, tokens, size, always=[63])


def scored(made: DraftHead) -> list[int]:
    short = made._passes.short_head
    return [] if short is None else short.ids.tolist()


def test_an_engine_has_one_where_it_saves_something(llm: SwiftLLM, tiny_model: Callable[[str], Path]) -> None:
    assert llm.engine._draft_head._passes.short_head is not None
    assert llm.engine.costs.short_head == 8 / 64
    for options in ({}, {"draft_vocabulary": 0}, {"draft_vocabulary": 8, "acceptance": "rejection"}):
        more: dict[str, Any] = {"kv_cache_tokens": 64, **options}
        other = SwiftLLM(str(tiny_model("llama")), "float32", **more)
        assert other.engine._draft_head._passes.short_head is None and other.engine.costs.short_head == 1.0


def test_it_is_made_anew_once_there_is_much_new(llm: SwiftLLM) -> None:
    tokens = TokenCounts()
    made = head(llm, tokens)
    assert scored(made) == [0, 1, 2, 63]
    tokens.note((), [40] * int(LEAST_NEWS - 1))
    made.tick(idle=True)
    assert scored(made) == [0, 1, 2, 63]
    tokens.note((), [41] * 2)
    made.tick(idle=False)
    assert scored(made) == [0, 1, 2, 63]
    made.tick(idle=True)
    assert scored(made) == [0, 40, 41, 63]


def test_an_engine_that_is_never_idle_waits_longer(llm: SwiftLLM) -> None:
    tokens = TokenCounts()
    made = head(llm, tokens)
    tokens.note((), [50] * int(BUSY * LEAST_NEWS + 1))
    made.tick(idle=False)
    assert 50 in scored(made)


def test_no_memory_for_it_is_no_failure(
    llm: SwiftLLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*arguments: object) -> ShortHead:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(ShortHead, "of", none)
    with caplog.at_level(logging.WARNING):
        made = head(llm, TokenCounts())
    assert scored(made) == [] and llm.engine.costs.short_head == 1.0
    assert "there is no memory for a short head" in caplog.text
    made.tick(idle=True)
    assert made._size == 0
