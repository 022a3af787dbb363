"""How is a state, or a head of queries or keys, brought to one size?"""

from __future__ import annotations

import torch
import torch.nn.functional as F


class RmsNorm:
    """Root-mean-square norm over the last dimension: x / sqrt(mean(x²) + eps) * weight, for weight [hidden].

    torch has a fused kernel on CUDA only. On a CPU the same formula, written as
    x * weight * √hidden / hypot(‖x‖, √(eps * hidden)), takes half as many small operations.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        """weight [hidden] (or [head_dim]) in the activations' dtype, on their device; eps is added to mean(x²)."""
        self.weight, self.eps = weight, eps
        self._fused = weight.device.type != "cpu"
        size = weight.shape[0]
        self._scaled = weight * size**0.5
        self._floor = torch.tensor((eps * size) ** 0.5, dtype=weight.dtype, device=weight.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._fused:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        length = torch.linalg.vector_norm(x, 2, -1, True).hypot_(self._floor)
        return torch.mul(x, self._scaled).div_(length)


class LayerNorm:
    """(x − mean) / sqrt(variance + eps) * weight + bias, over the last dimension."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> None:
        """weight and bias [hidden] in the activations' dtype, on their device."""
        self._weight, self._bias, self._eps = weight, bias, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias, self._eps)


class EachHeadNorm:
    """LayerNorm of each head by weights of its own, without a bias."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        """weight [heads, head_dim] in the activations' dtype, on their device."""
        self._weight, self._eps = weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, heads, head_dim]."""
        return F.layer_norm(x, x.shape[-1:], None, None, self._eps) * self._weight


class ProjectionNorm:
    """A norm of all heads as one vector."""

    def __init__(self, norm: RmsNorm) -> None:
        """norm: over heads * head_dim."""
        self._norm = norm

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, heads, head_dim]."""
        return self._norm(x.flatten(1)).view(x.shape)


class PostNorm:
    """A norm of what a linear made, in the activations' dtype."""

    def __init__(self, norm: RmsNorm | LayerNorm, dtype: torch.dtype) -> None:
        self._norm, self._dtype = norm, dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._norm(x.to(self._dtype))


def no_norm(x: torch.Tensor) -> torch.Tensor:
    """In place of a norm, where there is none."""
    return x
