"""What a shadow pass says of a position is what the first token of a draft there would be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from swift_backend import SwiftLLM
from swift_backend.batch import RowGroup
from swift_backend.model.shadow import Past, shadow_logits
from swift_backend.runner import Runner
from tests.conftest import ARCHITECTURES

TOKENS = [5, 9, 17, 3, 44, 21, 8, 60, 33, 12, 7, 5, 19, 28, 40, 2, 51, 9, 9, 30]
START = 32
SKIPS = [0, 0b1111_0000, 0b0000_1111_0100, 0b10_0000_0000_0000, 0b1111_0000, (1 << 14) - 1, 0b0101_0101_0101]


@pytest.fixture(params=[*ARCHITECTURES, "granite", "gemma2", "gemma3_text", "gpt_neox"])
def runner(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Runner:
    """With a text in its cache, from slot START on."""
    llm = SwiftLLM(str(tiny_model(request.param)), dtype="float32", kv_cache_tokens=128)
    llm.engine.runner.forward([RowGroup(TOKENS, 0, START, 0)])
    return llm.engine.runner


def drafted(runner: Runner, position: int, skip: int) -> torch.Tensor:
    """Logits of a draft's first pass at this position, [vocab]; the full model's keys are put back after it."""
    kept = [i for i in range(len(runner.decoder.sublayers)) if not skip >> i & 1]
    before = [both.clone() for both in runner.cache.slots]
    [logits] = runner.forward([RowGroup([TOKENS[position]], position, START, 1)], kept)
    for both, old in zip(runner.cache.slots, before, strict=True):
        both.copy_(old)
    return logits


@pytest.mark.parametrize("positions", [[13, 14, 15, 16, 17, 18, 19], [0, 1, 2], [19], [3, 18, 7]])
def test_it_is_what_a_draft_would_say(runner: Runner, positions: list[int]) -> None:
    """Whatever is skipped, in full and in windowed layers, and whoever goes through the pass beside it."""
    before = [both.clone() for both in runner.cache.slots]
    tokens = [TOKENS[position] for position in positions]
    said = shadow_logits(runner.decoder, runner.cache, START, tokens, positions, SKIPS)
    assert all(torch.equal(both, old) for both, old in zip(runner.cache.slots, before, strict=True)), "it wrote"
    for (i, skip), (j, position) in itertools.product(enumerate(SKIPS), enumerate(positions)):
        torch.testing.assert_close(said[i, j], drafted(runner, position, skip), rtol=1e-4, atol=1e-4)


def test_nothing_skipped_is_the_full_model(runner: Runner) -> None:
    full = runner.forward([RowGroup(TOKENS, 0, 0, len(TOKENS))])
    positions = range(len(TOKENS))
    [said] = shadow_logits(runner.decoder, runner.cache, START, TOKENS, positions, [0])
    torch.testing.assert_close(said, full, rtol=1e-4, atol=1e-4)


def test_what_lies_ahead_is_not_seen(runner: Runner) -> None:
    """Slots from a position on may hold anything: a rejected draft, or another sequence."""
    [clean] = shadow_logits(runner.decoder, runner.cache, START, TOKENS[8:10], [8, 9], [0b110000])
    for both in runner.cache.slots:
        both[START + 9 :] = 1e6
        both[:START] = -1e6
    [said] = shadow_logits(runner.decoder, runner.cache, START, TOKENS[8:10], [8, 9], [0b110000])
    assert torch.equal(said, clean)


def test_who_skips_alike_is_computed_once(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows through the first sublayer: one candidate's; through the last: one for each that differs before it."""
    rows: list[int] = []
    first = runner.decoder.sublayers[0].linears[0]
    monkeypatch.setattr(type(first), "__call__", _counting(type(first).__call__, rows))
    shadow_logits(runner.decoder, runner.cache, START, TOKENS[5:9], [5, 6, 7, 8], [0, 0b1100, 0b1100, 0b110000])
    assert rows[0] == 4
    assert rows[-1] == 4 * 3  # the head, over three different states


def _counting(call: Callable[..., torch.Tensor], rows: list[int]) -> Callable[..., torch.Tensor]:
    def counted(self: object, x: torch.Tensor) -> torch.Tensor:
        rows.append(x.shape[0])
        return call(self, x)

    return counted


def test_what_rows_see() -> None:
    past = Past.of(7, torch.tensor([2, 0, 4]), window=2)
    assert (past.start, past.length) == (7, 4)
    assert past.hidden.tolist() == [[False, False, True, True], [True] * 4, [False] * 4]
    assert past.hidden_in_window.tolist() == [[True, False, True, True], [True] * 4, [True, True, True, False]]
    assert past.repeated(2).hidden.shape == (6, 4)
