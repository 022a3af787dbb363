"""A head over part of the vocabulary says what the whole one says of it, and nothing of the rest."""

from __future__ import annotations

import pytest
import torch

from swift_backend.model.attention import soft_cap
from swift_backend.model.linear import Followed, HalfStorageLinear, PackedLinear, PlainLinear
from swift_backend.model.rowwise import RowwiseLinear, kernel
from swift_backend.model.short_head import ShortHead


@pytest.mark.parametrize("kind", [PlainLinear, PackedLinear, HalfStorageLinear, *([RowwiseLinear] if kernel() else [])])
def test_the_logits_are_those_of_the_whole_head(kind: type) -> None:
    weight = torch.randn(40, 32).bfloat16().to(torch.bfloat16 if kind is RowwiseLinear else torch.float32)
    head = kind(weight, None)
    short = ShortHead.of(head, 40, weight.dtype, [30, 3, 3, 0, 17])
    x = torch.randn(3, 32)
    logits = short(x)
    assert short.ids.tolist() == [0, 3, 17, 30] and short.share == 0.1
    assert torch.allclose(logits[:, short.ids], head(x)[:, short.ids], atol=1e-3)
    others = [token for token in range(40) if token not in (0, 3, 17, 30)]
    assert (logits[:, others] == -torch.inf).all()
    assert short.num_bytes <= 4 * 4 * 32


def test_what_a_head_makes_of_its_logits_the_short_one_does_too() -> None:
    """A cap, or a factor; what is not scored stays −inf, which a cap would make a number."""
    weight, x = torch.randn(40, 32), torch.randn(3, 32)
    head = Followed(PlainLinear(weight, None), lambda logits: soft_cap(logits, 2.0))
    short = ShortHead.of(head, 40, torch.float32, [30, 3, 0])
    logits = short(x)
    assert torch.allclose(logits[:, [0, 3, 30]], 2 * torch.tanh(x @ weight[[0, 3, 30]].T / 2), atol=1e-5)
    assert (logits[:, [1, 39]] == -torch.inf).all()
