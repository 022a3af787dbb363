"""Which function makes an MLP non-linear?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

Activation = Callable[[torch.Tensor], torch.Tensor]

_gelu_tanh = partial(F.gelu, approximate="tanh")
# By the names that configs use; gelu_new and gelu_fast write the same formula in other words.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_fast": _gelu_tanh,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
}


def gated(activation: Activation) -> Activation:
    """[…, gate and up] → activation(gate) * up."""

    def activate(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return activation(gate) * up

    return activate
