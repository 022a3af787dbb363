"""Our own kernels for CPUs with AVX2: a row's result does not depend on what rows are beside it; see csrc/."""

from __future__ import annotations

import importlib
import logging
from functools import cache
from typing import Any

import torch

PANEL = 16
# As in csrc/linear.h.
KINDS = {torch.bfloat16: 0, torch.int8: 1, torch.float32: 2}

_log = logging.getLogger(__name__)


@cache
def kernel() -> Any:
    """The extension module; None where it was not built, or where this CPU is not one that it is for."""
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return None
    try:
        module = importlib.import_module("swift_backend.model._rowwise")
    except ImportError as error:
        _log.warning("Passes take longer than they need: our kernel for this CPU was not built, or fails: %s", error)
        return None
    return module if module.supported() else None


class RowwiseLinear:
    """float32 activations and bfloat16, int8 or float32 weights; a row's result is the same in any company, to the bit.

    It takes as many threads as torch does.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None = None) -> None:
        """weight [out, in], of a dtype in KINDS, on a CPU, copied into panels; bias [out] of any dtype, or None.

        scale: of int8 weights, float32 [out]: what each output's are multiplied by.
        """
        self._kernel = kernel()
        self._out, self.inputs = weight.shape
        panels = -(-self._out // PANEL)
        self._panels = _large(self._kernel, (panels, self.inputs, PANEL), weight.dtype)
        whole = self._out // PANEL
        self._panels[:whole] = _in_place(weight[: whole * PANEL])
        if whole < panels:
            rest = torch.zeros((PANEL, self.inputs), dtype=weight.dtype)
            rest[: self._out % PANEL] = weight[whole * PANEL :]
            self._panels[whole:] = _in_place(rest)
        self._bias, self._scale = torch.zeros(panels * PANEL), torch.zeros(panels * PANEL)
        if bias is not None:
            self._bias[: self._out] = bias
        if scale is not None:
            self._scale[: self._out] = scale
        self.num_bytes = weight.nbytes
        addresses = (tensor.data_ptr() for tensor in (self._panels, self._bias, self._scale))
        self.description = (KINDS[weight.dtype], *addresses, self._out, self.inputs)
        self._plan = self._kernel.linear_plan(*self.description)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float().contiguous()
        rows, width = x.shape
        if width != self.inputs:
            raise ValueError(f"x must have {self.inputs} columns, got {width}")
        y = torch.empty(rows, self._out)
        self._kernel.linear(self._plan, x.data_ptr(), y.data_ptr(), rows, torch.get_num_threads())
        return y

    def weight_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """See Linear; float32 for int8 weights."""
        place = rows % PANEL
        if self._panels.dtype == torch.bfloat16:
            place = place % (PANEL // 2) * 2 + place // (PANEL // 2)
        found = self._panels[rows // PANEL, :, place]
        return found * self._scale[rows, None] if found.dtype == torch.int8 else found


def _in_place(weight: torch.Tensor) -> torch.Tensor:
    """[panels * 16, in] as [panels, in, 16]; of bfloat16, outputs i and i + 8 are neighbours."""
    out, inputs = weight.shape
    if weight.dtype == torch.bfloat16:
        halves = weight.view(out // PANEL, 2, PANEL // 2, inputs).permute(0, 3, 2, 1)
        return halves.reshape(out // PANEL, inputs, PANEL)
    return weight.view(out // PANEL, PANEL, inputs).transpose(1, 2)


def _large(module: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory in large pages, where the system gives them."""
    made = torch.empty(shape, dtype=dtype)
    module.use_large_pages(made.data_ptr(), made.nbytes)
    return made
