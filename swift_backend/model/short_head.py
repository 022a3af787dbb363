"""What would the head say of some tokens only? Fewer rows of its weight to read, for passes that only draft."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from swift_backend.model.linear import Followed, Kernels, Linear, make_linear


@dataclass(frozen=True, slots=True)
class ShortHead:
    """A head over part of the vocabulary; a copy of those rows of the weight.

    ids: the tokens that it scores, int64 [n], ascending.
    """

    ids: torch.Tensor
    vocab_size: int
    _linear: Linear

    @classmethod
    def of(
        cls, head: Linear, vocab_size: int, dtype: torch.dtype, ids: Iterable[int], kernels: Kernels = Kernels()
    ) -> ShortHead:
        """The rows of `head` for these tokens, with weights of dtype; each logit is what `head` makes of it."""
        rows = torch.tensor(sorted(set(ids)), dtype=torch.int64)
        weight = head.weight_rows(rows)
        linear = make_linear(weight.to(dtype), kernels=kernels)
        short = Followed(linear, head.then) if isinstance(head, Followed) else linear
        return cls(rows.to(weight.device), vocab_size, short)

    @property
    def num_bytes(self) -> int:
        """Of the copy."""
        return self._linear.num_bytes

    @property
    def share(self) -> float:
        """Of the vocabulary."""
        return self.ids.shape[0] / self.vocab_size

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Logits, [rows, vocab], of x [rows, hidden]; −inf for what is not scored."""
        scored = self._linear(x)
        logits = torch.full((x.shape[0], self.vocab_size), -torch.inf, dtype=scored.dtype, device=scored.device)
        return logits.index_copy_(1, self.ids, scored)
