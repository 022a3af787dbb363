"""The model: embedding, a flat list of residual sublayers, norm, head."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from swift_backend.batch import RaggedBatch
from swift_backend.kv_cache import KVCache
from swift_backend.model.attention import rotary_tables
from swift_backend.model.building import AddUp, Builder
from swift_backend.model.config import ModelConfig
from swift_backend.model.layers import Norm, Rotary, Sublayer
from swift_backend.model.linear import Kernels, Linear, PlainLinear, kernel_name
from swift_backend.model.weights import Tensors

Observer = Callable[[int, torch.Tensor, torch.Tensor], None]  # (sublayer, its input [rows, hidden], its output)

Head = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder; activations are float32 on a CPU and the model's dtype elsewhere.

    embedding: [vocab, hidden] in the model's dtype, scaled. sublayers: attention and MLP of each layer, in turn; where
    both read the same state, the two as one and then a NoSublayer. head: logits as the model says them, scaled and
    capped. rotary: cos and sin of every position, float32 [context, 1, dimensions] each, as rotary_tables makes them,
    of the model's ropes side by side. kernels: what was asked of the linears.
    """

    config: ModelConfig
    embedding: torch.Tensor
    sublayers: tuple[Sublayer, ...]
    norm: Norm
    head: Linear
    rotary: Rotary
    activation_dtype: torch.dtype
    kernels: Kernels

    def forward(
        self,
        batch: RaggedBatch,
        cache: KVCache,
        kept: Iterable[int] | None = None,
        observe: Observer | None = None,
        head: Head | None = None,
    ) -> torch.Tensor:
        """Logits, float32 [len(batch.logit_rows), vocab]; writes the rows' keys and values into the cache.

        kept: sublayers to compute, all of them by default; observe is called after each. head: in place of the own.
        """
        x = F.embedding(batch.token_ids, self.embedding).to(self.activation_dtype)
        cos, sin = self.rotary
        rotary = (cos[batch.positions], sin[batch.positions])
        for index in range(len(self.sublayers)) if kept is None else kept:
            y = self.sublayers[index](x, batch, cache, rotary)
            if observe is not None:
                observe(index, x, y)
            x = y
        if batch.logit_rows.shape[0] == 0:
            return torch.empty((0, self.config.vocab_size), dtype=torch.float32, device=x.device)
        wanted = x if batch.logit_rows.shape[0] == x.shape[0] else x[batch.logit_rows]
        return (head or self.head)(self.norm(wanted)).float()

    @property
    def num_bytes(self) -> int:
        """Bytes of embedding, linears and head as they are stored."""
        linears = [self.head, *(linear for sublayer in self.sublayers for linear in sublayer.linears)]
        return self.embedding.nbytes + sum(linear.num_bytes for linear in linears)

    @property
    def kernel(self) -> str:
        """What computes the linears."""
        return kernel_name(self.head)


def load_decoder(
    config: ModelConfig,
    weights: Tensors,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels = Kernels(),
    add_up: AddUp | None = None,
    *,
    with_head: bool = True,
) -> Decoder:
    """Build the decoder from a checkpoint, weights in `dtype` on `device`.

    add_up: see Builder. with_head: False for one that is never asked for logits.
    Raises ModelLoadError, naming the tensor, when one is missing, has another shape, is not of a 16 to 64 bit float,
    holds NaN or infinity, or holds values beyond what `dtype` can.
    """
    builder = Builder(config, weights, dtype, device, kernels, add_up)
    embedding = builder.embedding()
    tables = [rotary_tables(rope.inv_freq.to(device), config.context_length, rope.scale) for rope in config.ropes]
    cos, sin = (torch.cat(kind, dim=-1) for kind in zip(*tables, strict=True))
    return Decoder(
        config=config,
        embedding=builder.scaled(embedding),
        sublayers=tuple(sublayer for layer in range(config.num_layers) for sublayer in builder.layer(layer)),
        norm=builder.norm(config.names.norm, config.hidden_size),
        head=builder.head(embedding) if with_head else PlainLinear(embedding, None),
        rotary=(cos, sin),
        activation_dtype=builder.activation_dtype,
        kernels=kernels,
    )
