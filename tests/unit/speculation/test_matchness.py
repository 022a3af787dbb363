"""Whether drafts would have been right: what the model says with sublayers left out, against what it says in full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_backend import SwiftLLM
from swift_backend.batch import RowGroup
from swift_backend.model.shadow import logits_without
from swift_backend.runner import Runner
from swift_backend.speculation import matchness
from swift_backend.speculation.matchness import MOST_ROWS, Trial, try_sets

START = 16
TOKENS = [(7 * i * i + 3 * i + 5) % 64 for i in range(120)]
# Nothing, an attention, an MLP, a layer, half of the attentions, most sublayers, all of them.
SKIPS = [0, 1 << 4, 1 << 5, 0b11 << 6, 0b0101_0101_0000, (1 << 12) - 4, (1 << 14) - 1]


@pytest.fixture(params=["llama", "mistral"])
def runner(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Runner:
    """With TOKENS in its cache, from slot START on."""
    llm = SwiftLLM(str(tiny_model(request.param)), dtype="float32", kv_cache_tokens=160)
    llm.engine.runner.forward([RowGroup(TOKENS, 0, START, 0)])
    return llm.engine.runner


def drafted(runner: Runner, position: int, skip: int) -> tuple[int, float]:
    """The likeliest token of a draft's first pass at this position, and its probability; the cache stays as it is."""
    kept = [i for i in range(len(runner.decoder.sublayers)) if not skip >> i & 1]
    before = [both.clone() for both in runner.cache.slots]
    [logits] = runner.forward([RowGroup([TOKENS[position]], position, START, 1)], kept)
    for both, old in zip(runner.cache.slots, before, strict=True):
        both.copy_(old)
    confidence, token = torch.softmax(logits.double(), dim=-1).max(dim=-1)
    return int(token), float(confidence)


def check(trial: Trial, runner: Runner, positions: list[int], skips: list[int]) -> None:
    """It is what drafts would have said, one position and one layer set at a time."""
    assert trial.matches.dtype == torch.bool and trial.confidence.dtype == torch.float32
    said = [[drafted(runner, position, skip) for position in positions] for skip in skips]
    full = [drafted(runner, position, 0)[0] for position in positions]
    right = [[token == own for (token, _), own in zip(row, full, strict=True)] for row in said]
    assert trial.matches.tolist() == right
    sure = torch.tensor([[confidence for _, confidence in row] for row in said])
    torch.testing.assert_close(trial.confidence, sure, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("positions", [[40, 41, 42, 43, 44, 45, 46, 47], [0], [119, 3, 77, 20, 3]])
def test_it_is_what_drafts_would_have_said(runner: Runner, positions: list[int]) -> None:
    """In any order, and as often as it is asked; at the first position and the last."""
    check(try_sets(runner, START, TOKENS, positions, SKIPS), runner, positions, SKIPS)


def test_some_sets_are_right_and_some_are_not(runner: Runner) -> None:
    """The text tells them apart, or the tests here say little; who skips nothing is always right."""
    shares = try_sets(runner, START, TOKENS, range(60), SKIPS).matchness.tolist()
    assert shares[0] == 1.0
    assert all(0.0 < share < 1.0 for share in shares[1:4])
    assert min(shares[1:4]) > max(shares[5:])


def test_it_is_judged_by_the_full_model_and_not_by_the_text(runner: Runner) -> None:
    """A request that samples goes its own way; what it drew after a position plays no part."""
    other = [*TOKENS[:50], *((token + 1) % 64 for token in TOKENS[50:])]
    mine = try_sets(runner, START, TOKENS, [20, 49], SKIPS)
    its = try_sets(runner, START, other, [20, 49], SKIPS)
    assert torch.equal(mine.matches, its.matches) and torch.equal(mine.confidence, its.confidence)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The rows of logits of each pass so far."""
    rows: list[int] = []

    def counted(*arguments: Any) -> torch.Tensor:
        logits = logits_without(*arguments)
        rows.append(logits.shape[0] * logits.shape[1])
        return logits

    monkeypatch.setattr(matchness, "logits_without", counted)
    yield rows


def test_many_positions_go_through_in_several_passes(runner: Runner, passes: list[int]) -> None:
    """Logits take much memory; each position gets the same answer as alone."""
    positions = list(range(119, 19, -1))
    trial = try_sets(runner, START, TOKENS, positions, SKIPS)
    assert max(passes) <= MOST_ROWS and sum(passes) == 100 * (len(SKIPS) + 1) and len(passes) == 4
    alone = [try_sets(runner, START, TOKENS, [position], SKIPS) for position in positions]
    assert torch.equal(trial.matches, torch.cat([one.matches for one in alone], dim=1))
    together = torch.cat([one.confidence for one in alone], dim=1)
    torch.testing.assert_close(trial.confidence, together, rtol=1e-3, atol=1e-5)


def test_few_positions_are_one_pass(runner: Runner, passes: list[int]) -> None:
    try_sets(runner, START, TOKENS, range(MOST_ROWS // 4), SKIPS[:3])
    assert passes == [MOST_ROWS]


def test_more_candidates_than_rows_go_position_by_position(
    runner: Runner, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matchness, "MOST_ROWS", 4)
    check(try_sets(runner, START, TOKENS, [30, 31], SKIPS), runner, [30, 31], SKIPS)
    assert passes == [len(SKIPS) + 1] * 2


def test_no_candidates(runner: Runner) -> None:
    trial = try_sets(runner, START, TOKENS, [3, 4], [])
    assert trial.matches.shape == trial.confidence.shape == (0, 2)


def test_nothing_is_written(runner: Runner) -> None:
    before = [both.clone() for both in runner.cache.slots]
    try_sets(runner, START, TOKENS, range(100), SKIPS)
    assert all(torch.equal(both, old) for both, old in zip(runner.cache.slots, before, strict=True))


def test_the_share_that_matches() -> None:
    trial = Trial(torch.tensor([[True, False, True, True], [False] * 4]), torch.zeros(2, 4))
    assert trial.matchness.tolist() == [0.75, 0.0]
