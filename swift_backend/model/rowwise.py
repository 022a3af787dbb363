"""Our own kernel for bfloat16 weights on CPUs with AVX2 but no bfloat16 arithmetic; see rowwise.cpp."""

from __future__ import annotations

import importlib
import logging
from functools import cache
from typing import Any

import torch

PANEL = 16

_log = logging.getLogger(__name__)


@cache
def kernel() -> Any:
    """The extension module; None where it was not built, or where this CPU is not one that it is for.

    With AVX-512 FBGEMM has wider kernels.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX2":
        return None
    try:
        module = importlib.import_module("swift_backend.model._rowwise")
    except ImportError as error:
        _log.warning("Passes take longer than they need: our kernel for this CPU was not built, or fails: %s", error)
        return None
    return module if module.supported() else None


class RowwiseLinear:
    """float32 activations and bfloat16 weights; a row's result does not depend on what rows are beside it, to the bit.

    It takes as many threads as torch does.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight [out, in], bfloat16 on a CPU, copied into panels; bias [out] of any dtype, or None."""
        self._kernel = kernel()
        self._out, self._in = weight.shape
        panels = -(-self._out // PANEL)
        padded = torch.zeros(panels * PANEL, self._in, dtype=torch.bfloat16)
        padded[: self._out] = weight
        # [panel, half, output of the half, k] as [panel, k, output of the half, half]
        self._panels = padded.view(panels, 2, PANEL // 2, self._in).permute(0, 3, 2, 1).contiguous()
        self._bias = torch.zeros(panels * PANEL)
        if bias is not None:
            self._bias[: self._out] = bias
        self.num_bytes = weight.nbytes
        self._addresses = self._panels.data_ptr(), self._bias.data_ptr()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float().contiguous()
        rows, width = x.shape
        if width != self._in:
            raise ValueError(f"x must have {self._in} columns, got {width}")
        y = torch.empty(rows, self._out)
        weight, bias = self._addresses
        threads = torch.get_num_threads()
        self._kernel.linear(x.data_ptr(), weight, bias, y.data_ptr(), rows, self._out, self._in, threads)
        return y

    def weight_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        place = rows % PANEL
        return self._panels[rows // PANEL, :, place % (PANEL // 2), place // (PANEL // 2)]
