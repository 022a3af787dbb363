"""Our kernel: right, the same to the bit whatever else is computed, and chosen where it is for."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_backend.model import linear, rowwise
from swift_backend.model.linear import (
    FixedRowsLinear,
    HalfStorageLinear,
    Int8Linear,
    Kernels,
    PackedLinear,
    PlainLinear,
    make_linear,
    quantised,
)
from swift_backend.model.rowwise import RowwiseLinear, kernel
from tests.threads import on_threads

if kernel() is None and (torch.backends.cpu.get_cpu_capability() == "DEFAULT" or shutil.which("c++") is None):
    pytest.skip("not for this CPU, or there is no compiler here", allow_module_level=True)


def test_it_was_built() -> None:
    """Where there is a compiler and the CPU that it is for; else nothing would say that it is missing."""
    assert kernel() is not None


# Beyond a block of k, beyond one of rows, and outputs that fill no panel.
SHAPES = [(16, 8), (1, 3), (37, 32), (48, 512), (250, 1025), (96, 1600)]


def weights(outputs: int, inputs: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(outputs, inputs, generator=made).bfloat16(), torch.randn(outputs, generator=made)


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_the_product(outputs: int, inputs: int, rows: int, bias: bool) -> None:
    weight, offset = weights(outputs, inputs)
    x = torch.randn(rows, inputs)
    given = offset if bias else None
    expected = F.linear(x.double(), weight.double(), given.double() if given is not None else None).float()
    torch.testing.assert_close(RowwiseLinear(weight, given)(x), expected, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=60)
@given(
    shape=st.sampled_from(SHAPES),
    before=st.integers(0, 14),
    after=st.integers(0, 14),
    threads=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 1000),
)
def test_a_row_is_the_same_to_the_bit_in_any_company(
    shape: tuple[int, int], before: int, after: int, threads: int, seed: int
) -> None:
    """And on any number of threads."""
    made = RowwiseLinear(*weights(*shape))
    made_of = torch.Generator().manual_seed(seed)
    x = torch.randn(before + 1 + after, shape[1], generator=made_of)
    with on_threads(threads):
        together = made(x)[before]
    assert torch.equal(together, made(x[before : before + 1].clone())[0])


def test_every_bfloat16_number_is_held_as_it_is() -> None:
    finite = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    finite = finite[finite.isfinite()][:65024].view(-1, 127 * 2)
    made, one = RowwiseLinear(finite, None), torch.eye(254)
    assert torch.equal(made(one).T, finite.float() + 0.0)  # −0 + 0 is 0
    assert torch.equal(made.weight_rows(torch.tensor([17, 3, 255])), finite[[17, 3, 255]])


def test_other_layouts_of_x_and_half_precision_are_taken_as_they_come() -> None:
    weight, offset = weights(37, 32)
    made, x = RowwiseLinear(weight, offset), torch.randn(32, 9)
    assert torch.equal(made(x.T), made(x.T.contiguous()))
    assert torch.equal(made(x.T.bfloat16()), made(x.T.bfloat16().float()))
    assert made(torch.empty(0, 32)).shape == (0, 37)


def test_x_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="x must have 32 columns, got 31"):
        RowwiseLinear(*weights(37, 32))(torch.zeros(2, 31))


def test_what_is_not_finite_stays_in_its_row() -> None:
    """NaN and ∞ of one sequence's row are no other's."""
    made = RowwiseLinear(*weights(37, 32))
    x = torch.randn(5, 32)
    good = made(x)
    x[2, 3], x[4, 0] = torch.nan, torch.inf
    assert torch.equal(made(x)[[0, 1, 3]], good[[0, 1, 3]])
    assert made(x)[2].isnan().all() and not made(x)[4].isfinite().any()


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_it_is_chosen_where_the_cpu_has_nothing_wider_or_no_other_keeps_rows_apart(
    monkeypatch: pytest.MonkeyPatch, capability: str, dtype: torch.dtype
) -> None:
    weight, offset = weights(16, 8)[0].to(dtype), torch.randn(16).to(dtype)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    possible = dtype != torch.float16
    assert isinstance(make_linear(weight, offset), RowwiseLinear) == (possible and capability == "AVX2")
    apart = make_linear(weight, offset, Kernels(invariant=True))
    assert isinstance(apart, RowwiseLinear if possible else FixedRowsLinear)
    assert isinstance(make_linear(weight, offset, Kernels(int8=True)), RowwiseLinear)
    monkeypatch.setattr(linear, "kernel", lambda: None)
    assert isinstance(make_linear(weight, offset), PackedLinear | HalfStorageLinear | PlainLinear)
    assert isinstance(make_linear(weight, offset, Kernels(int8=True)), Int8Linear)


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_int8_weights_are_off_by_half_a_step_at_most(monkeypatch: pytest.MonkeyPatch, ours: bool, rows: int) -> None:
    weight, offset = weights(50, 320)
    weight[7] = 0  # no scale
    steps, scale = quantised(weight)
    near = steps.float() * scale[:, None]
    assert ((near - weight.float()).abs() <= scale[:, None] * 0.501).all() and steps.abs().max() == 127
    if not ours:
        monkeypatch.setattr(linear, "kernel", lambda: None)
    made, x = make_linear(weight, offset, Kernels(int8=True)), torch.randn(rows, 320)
    torch.testing.assert_close(made(x), F.linear(x, near, offset), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(made.weight_rows(torch.tensor([3, 49])), near[[3, 49]])


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 40])
def test_fixed_rows_change_nothing_but_the_shape_of_the_call(rows: int) -> None:
    asked: list[int] = []

    class Noting(PlainLinear):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            asked.append(x.shape[0])
            return super().__call__(x)

    made, x = FixedRowsLinear(Noting(weights(9, 8)[0].float(), None)), torch.randn(rows, 8)
    torch.testing.assert_close(made(x), F.linear(x, weights(9, 8)[0].float()))
    assert set(asked) <= {16} or rows == 0


@pytest.fixture
def unknown() -> Iterator[None]:
    rowwise.kernel.cache_clear()
    yield
    rowwise.kernel.cache_clear()


@pytest.mark.parametrize("reason", ["not built", "no FMA", "no AVX2"])
@pytest.mark.usefixtures("unknown")
def test_there_is_no_kernel_where_it_cannot_be_used(
    reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only that it is missing is worth a warning."""

    class Module:
        def supported(self) -> bool:
            return reason != "no FMA"

    def load(name: str) -> Any:
        if reason == "not built":
            raise ImportError(name)
        return Module()

    monkeypatch.setattr(importlib, "import_module", load)
    capability = "DEFAULT" if reason == "no AVX2" else "AVX2"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert kernel() is None
    assert ("was not built" in caplog.text) == (reason == "not built")
