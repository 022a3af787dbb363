"""Prices are the cost model's, of about this context, and not older than some steps."""

from __future__ import annotations

import pytest

from swift_backend.speculation.cost_model import CostModel, RowCosts
from swift_backend.speculation.prices import CONTEXT_STEP, STEPS, Prices

PART = RowCosts((1, 4), (1.0, 2.0))


def costs() -> CostModel:
    return CostModel(3, PART, PART, RowCosts((1, 4), (6.0, 12.0)), PART, per_key=0.01, short_head=0.25)


def test_full_passes_and_drafts_cost_what_the_model_says() -> None:
    model, prices = costs(), Prices(costs())
    near = CONTEXT_STEP + 3
    full = prices.full(10, 2, near, 3)
    assert full == [model.seconds(10 + k, CONTEXT_STEP, logit_rows=2 + k) for k in range(4)]
    assert prices.full(10, 2, near, 1) == full[:2]
    assert prices.draft(3, 2, near, 0b11) == model.seconds(3, CONTEXT_STEP, 0b11, 2, head_share=0.25)


def test_they_follow_the_model_after_some_steps() -> None:
    model = costs()
    prices = Prices(model)
    before = prices.full(1, 1, 0, 0)[0]
    model.scale = 2.0
    assert prices.full(1, 1, 0, 0)[0] == before
    for _ in range(STEPS):
        prices.next_step()
    assert prices.full(1, 1, 0, 0)[0] == pytest.approx(2 * before)
