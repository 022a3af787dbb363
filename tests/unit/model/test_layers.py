"""The pieces of a sublayer against their textbook formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from swift_backend.batch import BatchShape, RowGroup, build_batch
from swift_backend.model.attention import attend, rotary_tables, rotate_
from swift_backend.model.linear import HalfStorageLinear, PackedLinear, PlainLinear, make_linear
from swift_backend.model.norms import RmsNorm


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("shape", [(1, 48), (5, 48), (3, 4, 48)])
def test_norm(shape: tuple[int, ...], scale: float) -> None:
    x, weight = scale * torch.randn(shape), torch.randn(48)
    torch.testing.assert_close(RmsNorm(weight, 1e-5)(x), F.rms_norm(x, (48,), weight, 1e-5), rtol=1e-5, atol=1e-6)


def test_rotation_turns_pairs_by_position_times_frequency() -> None:
    inv_freq = torch.tensor([1.0, 0.1])
    cos, sin = rotary_tables(inv_freq, 10, scale=1.0)
    x = torch.randn(1, 3, 4)
    turned = x.clone()
    rotate_(turned, cos[7:8], sin[7:8])
    for pair, frequency in enumerate((1.0, 0.1)):
        before = torch.view_as_complex(x[..., [pair, pair + 2]].contiguous())
        after = torch.view_as_complex(turned[..., [pair, pair + 2]].contiguous())
        torch.testing.assert_close(after, before * torch.polar(torch.tensor(1.0), torch.tensor(7 * frequency)))


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 7), (9, 1), (9, 5), (2, 3)])
def test_attention_of_every_kind_of_group(first: int, count: int, window: int | None) -> None:
    """Against softmax(q k / √d) v written out, for 6 query heads over 2 kv heads."""
    torch.manual_seed(0)
    keys, values = torch.randn(1, 2, 64, 8), torch.randn(1, 2, 64, 8)
    query = torch.randn(count, 6, 8)
    batch = build_batch([RowGroup([1] * count, first, 20, 1)], torch.device("cpu"), BatchShape(3, window))
    out = attend(query, keys, values, batch.window_views, 8**-0.5).view(count, 6, 8)
    for row in range(count):
        last = first + row
        oldest = max(0, last - window + 1) if window else 0
        for head in range(6):
            k, v = (t[0, head // 3, 20 + oldest : 20 + last + 1] for t in (keys, values))
            expected = torch.softmax(k @ query[row, head] * 8**-0.5, dim=0) @ v
            torch.testing.assert_close(out[row, head], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [PlainLinear, PackedLinear, HalfStorageLinear])
@pytest.mark.parametrize("rows", [1, 2, 5, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(kind: type, rows: int, bias: bool) -> None:
    weight = torch.randn(48, 32).bfloat16().float()
    offset = torch.randn(48).bfloat16().float() if bias else None
    x = torch.randn(rows, 32)
    torch.testing.assert_close(kind(weight, offset)(x), F.linear(x, weight, offset), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [PlainLinear, PackedLinear, HalfStorageLinear])
@pytest.mark.parametrize("rows", [1, 2, 5, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_with_bfloat16_weights(kind: type, rows: int, bias: bool) -> None:
    """Half storage keeps x in float32; the other two round x to bfloat16, and their result."""
    if kind is PackedLinear and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bfloat16 arithmetic that oneDNN uses")
    weight = torch.randn(48, 32).bfloat16()
    offset = torch.randn(48).bfloat16() if bias else None
    x = torch.randn(rows, 32)
    exact = kind is HalfStorageLinear
    expected = F.linear(x if exact else x.bfloat16().float(), weight.float(), offset.float() if bias else None)
    tolerance = 1e-4 if exact else 2**-7
    torch.testing.assert_close(kind(weight, offset)(x).float(), expected, rtol=tolerance, atol=tolerance)


def test_half_storage_holds_bfloat16_weights_exactly() -> None:
    """Every magnitude from 2**-17 up to the largest half-precision number."""
    exponents = torch.arange(-17, 16)
    weight = ((1 + torch.arange(128) / 128) * torch.exp2(exponents.float())[:, None]).bfloat16()
    one = torch.eye(128)
    torch.testing.assert_close(HalfStorageLinear(weight, None)(one).T, weight.float(), rtol=0, atol=0)


def test_weights_that_half_precision_cannot_hold_stay_as_they_are() -> None:
    weight = torch.full((4, 4), 1e6, dtype=torch.bfloat16)
    assert not isinstance(make_linear(weight), HalfStorageLinear)
    torch.testing.assert_close(
        make_linear(weight)(torch.ones(1, 4)).float(), torch.full((1, 4), 4e6), rtol=1e-2, atol=0
    )
