"""Under which names does a checkpoint keep the parts of a layer?"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names of tensors; those of a layer's parts without its prefix and without ".weight" or ".bias".

    layer: the prefix, with the layer's number for {}. head: the first of these that is there.
    attention_norm, mlp_norm: of the sublayer's input; attention_post_norm, mlp_post_norm: of what it adds; None where
    there is no such norm. qkv, up: one name of what is stored fused, or one for each of the parts. interleaved: the
    fused rows are query, key and value of one head after the other.
    """

    embedding: str = "model.embed_tokens.weight"
    head: tuple[str, ...] = ("lm_head.weight",)
    norm: str = "model.norm"
    layer: str = "model.layers.{}."
    attention_norm: str | None = "input_layernorm"
    attention_post_norm: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    mlp_post_norm: str | None = None
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    interleaved: bool = False
    out: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"

    def with_one_norm(self) -> TensorNames:
        """The same where attention and MLP of a layer read the same norm."""
        return replace(self, mlp_norm=self.attention_norm)


LLAMA = TensorNames()
OLMO2 = replace(
    LLAMA,
    attention_norm=None,
    attention_post_norm="post_attention_layernorm",
    mlp_norm=None,
    mlp_post_norm="post_feedforward_layernorm",
)
GEMMA = replace(
    LLAMA,
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)
PHI3 = replace(LLAMA, qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",))
STABLELM = replace(LLAMA, q_norm="self_attn.q_layernorm", k_norm="self_attn.k_layernorm")
GPT_NEOX = replace(
    LLAMA,
    embedding="gpt_neox.embed_in.weight",
    head=("embed_out.weight", "lm_head.weight"),
    norm="gpt_neox.final_layer_norm",
    layer="gpt_neox.layers.{}.",
    qkv=("attention.query_key_value",),
    interleaved=True,
    out="attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
)
