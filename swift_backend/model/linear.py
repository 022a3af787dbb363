"""How is x @ W.T + b computed? One call signature, the fastest kernel that this machine has for the dtype.

On a CPU, decoding reads every weight once per pass, so the kernel with the least traffic wins. Which it is was
measured, see README "What limits speed".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from swift_backend.model.rowwise import KINDS, RowwiseLinear, kernel

HALF_MAX = torch.finfo(torch.float16).max


class Linear(Protocol):
    """y = x @ weight.T + bias for x [rows, in]; the result's dtype is the kernel's own."""

    num_bytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def weight_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """A copy of some rows of the weight, [len(rows), in]; rows int64 [n], on any device."""
        ...


class PlainLinear:
    """torch's own linear on the weight as it is: the reference, and the choice on a GPU."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight [out, in] of any floating dtype and device, kept and not copied; bias [out] of the same, or None."""
        self._weight, self._bias = weight, bias
        self.num_bytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x.to(self._weight.dtype), self._weight, self._bias)

    def weight_rows(self, rows: torch.Tensor) -> torch.Tensor:
        return self._weight[rows.to(self._weight.device)]


class PackedLinear:
    """oneDNN with the weight reordered once into its blocked layout; float32, or bfloat16 where the CPU has it."""

    # The layout is chosen for a number of rows; the one for 16 also serves 1 to 8 well, the one for 1 does not.
    ROWS = 16

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight [out, in], float32 or bfloat16 on a CPU, copied into the layout; bias [out] of the same, or None."""
        self._dtype, self._bias = weight.dtype, bias
        self.num_bytes = weight.nbytes
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, self.ROWS)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x.to(self._dtype), self._weight, self._bias, "none", [], "")

    def weight_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """See Linear; unpacks the whole weight meanwhile."""
        return self._weight.to_dense()[rows]


class HalfStorageLinear:
    """FBGEMM with float32 activations and weights kept in 16 bits, for CPUs without bfloat16 arithmetic, float16
    weights, and where our own kernel was not built.

    A bfloat16 weight has 8 significant bits and half precision 11, so every weight of magnitude 2**-17 … 65504 is
    held exactly; smaller ones are off by at most 2**-25.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight [out, in] of any floating dtype on a CPU, copied to 16 bits; bias [out] of any dtype, or None."""
        self.num_bytes = 2 * weight.numel()
        self._weight = torch.ops.quantized.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x.float(), self._weight)

    def weight_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """See Linear; unpacks the whole weight meanwhile."""
        weight, _ = torch.ops.quantized.linear_unpack_fp16(self._weight)
        return weight[rows]


class Followed:
    """A linear, and what is made of its result each time: a norm, a factor, a soft cap."""

    def __init__(self, linear: Linear, then: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """then: from [rows, out] to the same shape."""
        self.linear, self.then = linear, then
        self.num_bytes = linear.num_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.then(self.linear(x))

    def weight_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """See Linear: of the linear alone."""
        return self.linear.weight_rows(rows)


class Int8Linear:
    """torch's product with int8 weights, where our own kernel was not built."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor) -> None:
        """weight int8 [out, in], scale float32 [out], both kept; bias [out] of any dtype, or None."""
        self._weight, self._scale = weight, scale
        self._bias = None if bias is None else bias.float()
        self.num_bytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.ops.aten._weight_int8pack_mm(x.float().contiguous(), self._weight, self._scale)
        return y if self._bias is None else y + self._bias

    def weight_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """See Linear; float32."""
        return self._weight[rows] * self._scale[rows, None]


class FixedRowsLinear:
    """Another linear, always asked for the same number of rows: it cannot compute a row another way in other company.

    For devices that our own kernels, of which each row is independent, are not for.
    """

    ROWS = 16

    def __init__(self, linear: Linear) -> None:
        self.linear = linear
        self.num_bytes = linear.num_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        padded = F.pad(x, (0, 0, 0, -rows % self.ROWS))
        parts = [self.linear(part.contiguous()) for part in padded.split(self.ROWS)] or [self.linear(padded)]
        return torch.cat(parts)[:rows]

    def weight_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        return self.linear.weight_rows(rows)


@dataclass(frozen=True, slots=True)
class Kernels:
    """What is asked of linears beside the product.

    int8: weights are rounded to 8 bits, each output's by a scale of its own. invariant: a row's result has the same
    bits whatever rows are beside it.
    """

    int8: bool = False
    invariant: bool = False


def innermost(linear: Linear) -> Linear:
    """The product itself, without what follows it."""
    while isinstance(linear, Followed | FixedRowsLinear):
        linear = linear.linear
    return linear


def kernel_name(linear: Linear) -> str:
    """Which kernel computes it, and in how many rows at a time if that is fixed."""
    name = type(innermost(linear)).__name__
    while isinstance(linear, Followed):
        linear = linear.linear
    return f"{name} by {FixedRowsLinear.ROWS} rows" if isinstance(linear, FixedRowsLinear) else name


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None, kernels: Kernels = Kernels()) -> Linear:
    """Choose the kernel for a weight [out, in] (and bias [out]) that is already in the model's dtype and device."""
    if kernels.int8:
        linear = _int8(weight, bias)
    elif (_is_possible if kernels.invariant else ours_is_fastest)(weight.dtype, weight.device):
        linear = RowwiseLinear(weight, bias)
    else:
        linear = _by_torch(weight, bias)
    return FixedRowsLinear(linear) if kernels.invariant and not isinstance(linear, RowwiseLinear) else linear


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [out, in] and float32 [out], whose product is the weight [out, in], to half a step of each output's."""
    steps = torch.empty(weight.shape, dtype=torch.int8)
    scale = torch.empty(weight.shape[0])
    for some in range(0, weight.shape[0], 4096):  # not all as float32 at once
        part = weight[some : some + 4096].float()
        of_part = part.abs().amax(1) / 127
        scale[some : some + 4096] = of_part
        steps[some : some + 4096] = (part / of_part.clamp_min(1e-30)[:, None]).round_()
    return steps, scale


def _int8(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    steps, scale = quantised(weight)
    return Int8Linear(steps, bias, scale) if kernel() is None else RowwiseLinear(steps, bias, scale)


def ours_is_fastest(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether our own kernel is the best that this machine has: on CPUs with AVX2 and nothing wider."""
    return _is_possible(dtype, device) and torch.backends.cpu.get_cpu_capability() == "AVX2"


def _is_possible(dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cpu" and dtype in KINDS and kernel() is not None


def _by_torch(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return PlainLinear(weight, bias)
    if weight.dtype == torch.float32:
        return PackedLinear(weight, bias)
    if weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return PackedLinear(weight, bias)
    if "fbgemm" in torch.backends.quantized.supported_engines and weight.abs().max() <= HALF_MAX:
        return HalfStorageLinear(weight, bias)
    return PlainLinear(weight, bias)
