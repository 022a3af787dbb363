"""How do a checkpoint's tensors become the parts of a decoder?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from swift_backend.errors import ModelLoadError
from swift_backend.model.activations import ACTIVATIONS, gated
from swift_backend.model.attention import (
    Attend,
    Rotate,
    attend,
    attend_capped,
    leave_,
    rotate_,
    rotate_by_part_,
    rotate_first_,
    soft_cap,
)
from swift_backend.model.config import ModelConfig
from swift_backend.model.fused import fused_mlp, with_kernels
from swift_backend.model.layers import AttentionSublayer, MlpSublayer, Norm, NoSublayer, ParallelSublayer, Sublayer
from swift_backend.model.linear import Followed, Kernels, Linear, make_linear
from swift_backend.model.norms import EachHeadNorm, LayerNorm, PostNorm, ProjectionNorm, RmsNorm, no_norm
from swift_backend.model.weights import Tensors, all_finite

AddUp = Callable[[torch.Tensor], torch.Tensor]


class Builder:
    """Turns named tensors into sublayers."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Tensors,
        dtype: torch.dtype,
        device: torch.device,
        kernels: Kernels,
        add_up: AddUp | None = None,
    ) -> None:
        """dtype and device are those of the finished weights; the norms' weights have the activations' dtype.

        add_up: makes the sum of what this and other decoders, of a part of the heads and the MLP each, have computed.
        """
        self._add_up = add_up
        self._config, self._weights, self._dtype, self._device = config, weights, dtype, device
        self._linear = partial(make_linear, kernels=kernels)
        self._invariant = kernels.invariant
        self._names = config.names
        self.activation_dtype = torch.float32 if device.type == "cpu" else dtype

    def embedding(self) -> torch.Tensor:
        """[vocab, hidden]; a checkpoint with a tied head may store it under the head's name alone."""
        c, name, head = self._config, self._names.embedding, self._stored_head()
        alone = head if c.tied_head and not self._weights.has(name) else None
        return self._tensor(alone or name, c.vocab_size, c.hidden_size)

    def scaled(self, embedding: torch.Tensor) -> torch.Tensor:
        """As the first sublayer reads it. Factor and product are rounded to the dtype, as in transformers."""
        factor = self._config.embedding_scale
        return embedding if factor == 1 else embedding * torch.tensor(factor, dtype=self._dtype, device=self._device)

    def head(self, embedding: torch.Tensor) -> Linear:
        """Like transformers, a stored head that differs wins over a config that says it is tied."""
        c, stored = self._config, self._stored_head()
        weight = embedding
        if stored is not None or not c.tied_head:
            head = self._tensor(stored or self._names.head[0], c.vocab_size, c.hidden_size)
            weight = embedding if c.tied_head and torch.equal(head, embedding) else head
        linear = self._linear(weight)
        if c.logit_divisor != 1:
            linear = Followed(linear, lambda logits: logits.float() / c.logit_divisor)
        cap = c.logit_cap
        return linear if cap is None else Followed(linear, lambda logits: soft_cap(logits.float(), cap))

    def layer(self, layer: int) -> tuple[Sublayer, Sublayer]:
        """Attention and MLP; where both read the same state, the two as one, and nothing."""
        attention, mlp = self._attention(layer), self._mlp(layer)
        return (ParallelSublayer(attention, mlp), NoSublayer()) if self._config.parallel else (attention, mlp)

    def norm(self, name: str, size: int) -> RmsNorm | LayerNorm:
        c = self._config
        weight = self._tensor(f"{name}.weight", size).to(self.activation_dtype)
        if c.layer_norm:
            return LayerNorm(weight, self._tensor(f"{name}.bias", size).to(self.activation_dtype), c.norm_eps)
        return RmsNorm(weight + c.norm_offset if c.norm_offset else weight, c.norm_eps)

    def _stored_head(self) -> str | None:
        """The name under which the checkpoint has a head."""
        return next((name for name in self._names.head if self._weights.has(name)), None)

    def _tensor(self, name: str, *shape: int) -> torch.Tensor:
        stored = self._weights.get(name, shape)
        tensor = stored.to(self._dtype)
        if torch.finfo(self._dtype).max < torch.finfo(stored.dtype).max and not all_finite(tensor):
            raise ModelLoadError(f"Tensor {name} holds values beyond {self._dtype}; choose another dtype.")
        return tensor.to(self._device)

    def _attention(self, layer: int) -> AttentionSublayer:
        c, names, prefix = self._config, self._names, self._names.layer.format(layer)
        q_size = c.num_heads * c.head_dim
        part = self._rope_part(layer)
        sublayer = AttentionSublayer(
            layer=layer,
            norm=self._input_norm(prefix, names.attention_norm),
            qkv=self._qkv(prefix),
            out=self._out(prefix, names.out, q_size, c.output_bias, names.attention_post_norm),
            q_norm=self._head_norm(prefix + names.q_norm, c.num_heads),
            k_norm=self._head_norm(prefix + names.k_norm, c.num_kv_heads),
            rotate=self._rotate(part),
            attend=self._attend(),
            num_heads=c.num_heads,
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            scale=c.scale,
            cap=c.score_cap,
            windowed=c.windowed[layer],
        )
        return with_kernels(sublayer, c.window, part, sum(rope.width for rope in c.ropes), self._invariant)

    def _mlp(self, layer: int) -> MlpSublayer:
        c, names, prefix = self._config, self._names, self._names.layer.format(layer)
        activation = ACTIVATIONS[c.activation]
        size = 2 * c.intermediate_size if c.gated else c.intermediate_size
        sublayer = MlpSublayer(
            norm=self._input_norm(prefix, names.mlp_norm),
            up=self._linear(*self._stacked(prefix, names.up, [size // len(names.up)] * len(names.up), c.mlp_bias)),
            activate=gated(activation) if c.gated else activation,
            down=self._out(prefix, names.down, c.intermediate_size, c.mlp_bias, names.mlp_post_norm),
        )
        return fused_mlp(sublayer, c.activation, c.gated)

    def _qkv(self, prefix: str) -> Linear:
        c, names = self._config, self._names
        sizes = [heads * c.head_dim for heads in (c.num_heads, c.num_kv_heads, c.num_kv_heads)]
        sizes = sizes if len(names.qkv) == len(sizes) else [sum(sizes)]
        weight, bias = self._stacked(prefix, names.qkv, sizes, c.qkv_bias)
        if names.interleaved:
            weight, bias = self._by_kind(weight), None if bias is None else self._by_kind(bias)
        return self._linear(weight, bias)

    def _by_kind(self, rows: torch.Tensor) -> torch.Tensor:
        """All queries, then all keys, then all values, of rows [heads * 3 * head_dim, …] head by head."""
        c = self._config
        return rows.view(c.num_heads, 3, c.head_dim, -1).transpose(0, 1).reshape(rows.shape)

    def _stacked(
        self, prefix: str, names: tuple[str, ...], sizes: list[int], bias: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Several projections of the same state as one: weight [sum of sizes, hidden], and bias."""
        parts, width = list(zip(names, sizes, strict=True)), self._config.hidden_size
        weight = torch.cat([self._tensor(f"{prefix}{name}.weight", size, width) for name, size in parts])
        biases = [self._tensor(f"{prefix}{name}.bias", size) for name, size in parts] if bias else None
        return weight, torch.cat(biases) if biases else None

    def _out(self, prefix: str, name: str, width: int, bias: bool, post_norm: str | None) -> Linear:
        """What a sublayer adds: back to the hidden size, then normed and scaled where the family does that."""
        c = self._config
        weight = self._tensor(f"{prefix}{name}.weight", c.hidden_size, width)
        linear = self._linear(weight, self._tensor(f"{prefix}{name}.bias", c.hidden_size) if bias else None)
        if self._add_up is not None:
            linear = Followed(linear, self._add_up)
        if post_norm is not None:
            linear = Followed(linear, PostNorm(self.norm(prefix + post_norm, c.hidden_size), self.activation_dtype))
        factor = c.residual_scale
        return linear if factor == 1 else Followed(linear, lambda added: added * factor)

    def _input_norm(self, prefix: str, name: str | None) -> Norm:
        return no_norm if name is None else self.norm(prefix + name, self._config.hidden_size)

    def _head_norm(self, name: str, heads: int) -> Norm | None:
        """Of queries, or of keys."""
        c = self._config
        if c.qk_norm == "projection":
            return ProjectionNorm(RmsNorm(self._weight(name, heads * c.head_dim), c.norm_eps))
        if c.qk_norm == "each head":
            weights = [self._weight(f"{name}.norms.{head}", c.head_dim) for head in range(heads)]
            return EachHeadNorm(torch.stack(weights), c.norm_eps)
        return None if c.qk_norm is None else self.norm(name, c.head_dim)

    def _weight(self, name: str, size: int) -> torch.Tensor:
        """Of a norm."""
        return self._tensor(f"{name}.weight", size).to(self.activation_dtype)

    def _rope_part(self, layer: int) -> slice | None:
        """The columns of the rotary tables that turn this layer's heads."""
        c, rope = self._config, self._config.rope_of[layer]
        if rope is None:
            return None
        begin = sum(one.width for one in c.ropes[:rope])
        return slice(begin, begin + c.ropes[rope].width)

    def _rotate(self, part: slice | None) -> Rotate:
        c = self._config
        if part is None:
            return leave_
        if len(c.ropes) > 1:
            return partial(rotate_by_part_, part=part)
        return rotate_ if c.ropes[0].width == c.head_dim else rotate_first_

    def _attend(self) -> Attend:
        cap = self._config.score_cap
        return attend if cap is None else partial(attend_capped, cap=cap)
