"""The model: embedding, a flat list of residual sublayers, norm, head."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from swift_backend.batch import RaggedBatch
from swift_backend.errors import ModelLoadError
from swift_backend.kv_cache import KVCache
from swift_backend.model.attention import rotary_tables
from swift_backend.model.config import ModelConfig
from swift_backend.model.layers import AttentionSublayer, MlpSublayer, Norm, Rotary, Sublayer
from swift_backend.model.linear import Linear, make_linear
from swift_backend.model.weights import Weights, all_finite

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

Observer = Callable[[int, torch.Tensor, torch.Tensor], None]  # (sublayer, its input [rows, hidden], its output)

Head = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder of the Llama family; activations are float32 on a CPU and the model's dtype elsewhere.

    embedding: [vocab, hidden] in the model's dtype; sublayers: attention and MLP of each layer, in turn.
    rotary: cos and sin of every position, float32 [context, 1, head_dim] each, as rotary_tables makes them.
    """

    config: ModelConfig
    embedding: torch.Tensor
    sublayers: tuple[Sublayer, ...]
    norm: Norm
    head: Linear
    rotary: Rotary
    activation_dtype: torch.dtype

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
        linears = [self.head]
        for sublayer in self.sublayers:
            linears += (
                [sublayer.qkv, sublayer.out]
                if isinstance(sublayer, AttentionSublayer)
                else [sublayer.gate_up, sublayer.down]
            )
        return self.embedding.nbytes + sum(linear.num_bytes for linear in linears)


def load_decoder(config: ModelConfig, weights: Weights, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Build the decoder from a checkpoint, weights in `dtype` on `device`.

    Raises ModelLoadError, naming the tensor, when one is missing, has another shape, is not of a 16 to 64 bit float,
    holds NaN or infinity, or holds values beyond what `dtype` can.
    """
    builder = _Builder(config, weights, dtype, device)
    embedding = builder.embedding()
    sublayers = [build(n) for n in range(config.num_layers) for build in (builder.attention, builder.mlp)]
    return Decoder(
        config=config,
        embedding=embedding,
        sublayers=tuple(sublayers),
        norm=builder.norm("model.norm.weight", config.hidden_size),
        head=make_linear(builder.head(embedding)),
        rotary=rotary_tables(config.inv_freq.to(device), config.context_length, config.rope_scale),
        activation_dtype=builder.activation_dtype,
    )


class _Builder:
    """Turns named tensors into sublayers."""

    def __init__(self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: torch.device) -> None:
        """dtype and device are those of the finished weights; the norms' weights have the activations' dtype."""
        self._config, self._weights, self._dtype, self._device = config, weights, dtype, device
        self.activation_dtype = torch.float32 if device.type == "cpu" else dtype

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        stored = self._weights.get(name, shape)
        tensor = stored.to(self._dtype)
        if torch.finfo(self._dtype).max < torch.finfo(stored.dtype).max and not all_finite(tensor):
            raise ModelLoadError(f"Tensor {name} holds values beyond {self._dtype}; choose another dtype.")
        return tensor.to(self._device)

    def embedding(self) -> torch.Tensor:
        """[vocab, hidden]; a checkpoint with a tied head may store it under the head's name alone."""
        alone = self._config.tied_head and self._weights.has(HEAD) and not self._weights.has(EMBEDDING)
        return self.tensor(HEAD if alone else EMBEDDING, self._config.vocab_size, self._config.hidden_size)

    def head(self, embedding: torch.Tensor) -> torch.Tensor:
        """[vocab, hidden]; like transformers, a stored head that differs wins over a config that says it is tied."""
        if self._config.tied_head and not self._weights.has(HEAD):
            return embedding
        head = self.tensor(HEAD, self._config.vocab_size, self._config.hidden_size)
        return embedding if self._config.tied_head and torch.equal(head, embedding) else head

    def norm(self, name: str, size: int) -> Norm:
        return Norm(self.tensor(name, size).to(self.activation_dtype), self._config.norm_eps)

    def linear(self, prefix: str, names: tuple[str, ...], sizes: tuple[int, ...], width: int, bias: bool) -> Linear:
        """Several projections of the same input as one."""
        parts = list(zip(names, sizes, strict=True))
        weight = torch.cat([self.tensor(f"{prefix}{name}.weight", size, width) for name, size in parts])
        biases = [self.tensor(f"{prefix}{name}.bias", size) for name, size in parts] if bias else None
        return make_linear(weight, torch.cat(biases) if biases else None)

    def attention(self, layer: int) -> AttentionSublayer:
        c, prefix = self._config, f"model.layers.{layer}."
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        inner = prefix + "self_attn."
        return AttentionSublayer(
            layer=layer,
            norm=self.norm(prefix + "input_layernorm.weight", c.hidden_size),
            qkv=self.linear(
                inner, ("q_proj", "k_proj", "v_proj"), (q_size, kv_size, kv_size), c.hidden_size, c.qkv_bias
            ),
            out=self.linear(inner, ("o_proj",), (c.hidden_size,), q_size, c.output_bias),
            q_norm=self.norm(inner + "q_norm.weight", c.head_dim) if c.qk_norm else None,
            k_norm=self.norm(inner + "k_norm.weight", c.head_dim) if c.qk_norm else None,
            num_heads=c.num_heads,
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            scale=c.scale,
            windowed=c.windowed[layer],
        )

    def mlp(self, layer: int) -> MlpSublayer:
        c, prefix = self._config, f"model.layers.{layer}."
        inner, sizes = prefix + "mlp.", (c.intermediate_size, c.intermediate_size)
        return MlpSublayer(
            norm=self.norm(prefix + "post_attention_layernorm.weight", c.hidden_size),
            gate_up=self.linear(inner, ("gate_proj", "up_proj"), sizes, c.hidden_size, c.mlp_bias),
            down=self.linear(inner, ("down_proj",), (c.hidden_size,), c.intermediate_size, c.mlp_bias),
        )
