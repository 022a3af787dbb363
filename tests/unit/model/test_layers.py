"""The pieces of a sublayer against their textbook formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from swift_backend.batch import BatchShape, RowGroup, build_batch
from swift_backend.model.attention import attend, attend_capped, rotary_tables, rotate_, rotate_by_part_, rotate_first_
from swift_backend.model.linear import HalfStorageLinear, PackedLinear, PlainLinear, make_linear
from swift_backend.model.norms import EachHeadNorm, LayerNorm, ProjectionNorm, RmsNorm


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("shape", [(1, 48), (5, 48), (3, 4, 48)])
def test_norm(shape: tuple[int, ...], scale: float) -> None:
    x, weight = scale * torch.randn(shape), torch.randn(48)
    torch.testing.assert_close(RmsNorm(weight, 1e-5)(x), F.rms_norm(x, (48,), weight, 1e-5), rtol=1e-5, atol=1e-6)


def test_norms_of_other_families() -> None:
    x, weight, bias = torch.randn(3, 48), torch.randn(48), torch.randn(48)
    torch.testing.assert_close(LayerNorm(weight, bias, 1e-5)(x), torch.layer_norm(x, (48,), weight, bias, 1e-5))
    heads = x.view(3, 4, 12)
    torch.testing.assert_close(ProjectionNorm(RmsNorm(weight, 1e-5))(heads).view(3, 48), RmsNorm(weight, 1e-5)(x))
    own = EachHeadNorm(weight.view(4, 12), 1e-5)(heads)
    for head in range(4):
        expected = torch.layer_norm(heads[:, head], (12,), weight.view(4, 12)[head], None, 1e-5)
        torch.testing.assert_close(own[:, head], expected)


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


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 7), (9, 1), (9, 5), (2, 3), (0, 20), (3, 20)])
def test_capped_attention_of_every_kind_of_group(first: int, count: int, window: int | None) -> None:
    """A cap that is never reached changes nothing; the formula with one that is, for 6 query heads over 2 kv heads."""
    torch.manual_seed(0)
    keys, values, query = torch.randn(1, 2, 64, 8), torch.randn(1, 2, 64, 8), torch.randn(count, 6, 8)
    batch = build_batch([RowGroup([1] * count, first, 20, 1)], torch.device("cpu"), BatchShape(3, window))
    plain = attend(query, keys, values, batch.window_views, 0.3)
    uncapped = attend_capped(query, keys, values, batch.window_views, 0.3, cap=1e4)
    torch.testing.assert_close(uncapped, plain, rtol=1e-4, atol=1e-5)
    capped = attend_capped(query, keys, values, batch.window_views, 0.3, cap=0.5).view(count, 6, 8)
    last = first + count - 1
    oldest = max(0, last - window + 1) if window else 0
    for head in range(6):
        k, v = (t[0, head // 3, 20 + oldest : 20 + last + 1] for t in (keys, values))
        expected = torch.softmax(0.5 * torch.tanh(k @ query[-1, head] * 0.3 / 0.5), dim=0) @ v
        torch.testing.assert_close(capped[-1, head], expected, rtol=1e-4, atol=1e-5)


def test_capped_attention_keeps_sequences_apart() -> None:
    torch.manual_seed(0)
    keys, values, query = torch.randn(1, 2, 64, 8), torch.randn(1, 2, 64, 8), torch.randn(5, 6, 8)
    groups = [RowGroup([1] * 2, 3, 0, 1), RowGroup([1] * 3, 9, 30, 1)]
    batch = build_batch(groups, torch.device("cpu"), BatchShape(3, None))
    together = attend_capped(query, keys, values, batch.views, 0.3, 0.5)
    for group, rows in zip(groups, (slice(0, 2), slice(2, 5)), strict=True):
        alone = build_batch([group], torch.device("cpu"), BatchShape(3, None))
        assert torch.equal(together[rows], attend_capped(query[rows], keys, values, alone.views, 0.3, 0.5))


def test_rope_of_a_part_of_a_head_leaves_the_rest() -> None:
    cos, sin = rotary_tables(torch.tensor([1.0, 0.1]), 10, scale=1.0)
    x = torch.randn(1, 3, 10)
    turned, expected = x.clone(), x[..., :4].clone()
    rotate_first_(turned, cos[7:8], sin[7:8])
    rotate_(expected, cos[7:8], sin[7:8])
    assert torch.equal(turned, torch.cat((expected, x[..., 4:]), dim=-1))


def test_ropes_side_by_side() -> None:
    tables = [rotary_tables(torch.tensor([one, 0.1]), 10, scale=1.0) for one in (1.0, 0.5)]
    cos, sin = (torch.cat(kind, dim=-1) for kind in zip(*tables, strict=True))
    x = torch.randn(1, 3, 4)
    for number, (own_cos, own_sin) in enumerate(tables):
        turned, expected = x.clone(), x.clone()
        rotate_by_part_(turned, cos[7:8], sin[7:8], slice(4 * number, 4 * number + 4))
        rotate_(expected, own_cos[7:8], own_sin[7:8])
        assert torch.equal(turned, expected)


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
