"""Which families are supported, and what does each do that llama does not? A row for each."""

from __future__ import annotations

from dataclasses import dataclass

from swift_backend.model.tensor_names import GEMMA, GPT_NEOX, LLAMA, OLMO2, PHI3, STABLELM, TensorNames


@dataclass(frozen=True, slots=True)
class Family:
    """What transformers' model of a family computes, whatever else its config says.

    A string is the field of the config that decides (of the biases) or that holds the number; None: no such number.

    windows: no layer has a window ("none"), each has it where there is one ("all"), or layer_types says ("listed").
    head_dim, kv_heads: whether the config may set them apart from hidden_size and the number of heads.
    norm_eps, activation: the fields' names. layer_norm: norms subtract the mean and add a bias. norm_offset: added to
    the norms' weights. qk_norm: what is normed: "head", each head by the same weights; "each head", by its own;
    "projection", all heads as one vector; None where it is not. qk_norm_if: a field that switches this on.
    partial_rotary: rope may turn part of a head. rope_by_layer_type: layers that slide have a rope of their own.
    gated: the MLP has a gate. parallel: a field that says whether attention and MLP of a layer read the same state;
    one_norm: and, if so, the same norm of it.
    query_scalar: scores are multiplied by this to the power of −1/2, or by attention_scale, else by head_dim's.
    embedding_by_width: embeddings are multiplied by √hidden_size.
    """

    architecture: str
    names: TensorNames = LLAMA
    windows: str = "none"
    qkv_bias: str | bool = False
    output_bias: str | bool = False
    mlp_bias: str | bool = False
    head_dim: bool = True
    kv_heads: bool = True
    norm_eps: str = "rms_norm_eps"
    layer_norm: bool = False
    norm_offset: float = 0.0
    qk_norm: str | None = None
    qk_norm_if: str | None = None
    activation: str = "hidden_act"
    gated: bool = True
    partial_rotary: bool = False
    rope_by_layer_type: bool = False
    parallel: str | None = None
    one_norm: bool = False
    query_scalar: str | None = None
    attention_scale: str | None = None
    score_cap: str | None = None
    embedding_by_width: bool = False
    embedding_scale: str | None = None
    residual_scale: str | None = None
    logit_divisor: str | None = None
    logit_cap: str | None = None


FAMILIES = {
    "llama": Family("LlamaForCausalLM", qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"),
    "mistral": Family("MistralForCausalLM", windows="all"),
    "qwen2": Family("Qwen2ForCausalLM", windows="listed", qkv_bias=True),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        windows="listed",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm="head",
    ),
    "granite": Family(
        "GraniteForCausalLM",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        attention_scale="attention_multiplier",
        embedding_scale="embedding_multiplier",
        residual_scale="residual_multiplier",
        logit_divisor="logits_scaling",
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        names=OLMO2,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm="projection",
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        windows="listed",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    "phi3": Family("Phi3ForCausalLM", names=PHI3, windows="all", partial_rotary=True),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        names=GEMMA,
        windows="listed",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        norm_offset=1.0,
        activation="hidden_activation",
        query_scalar="query_pre_attn_scalar",
        score_cap="attn_logit_softcapping",
        embedding_by_width=True,
        logit_cap="final_logit_softcapping",
    ),
    # Its config has attn_logit_softcapping, too, which transformers' model does not heed.
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        names=GEMMA,
        windows="listed",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        norm_offset=1.0,
        qk_norm="head",
        activation="hidden_activation",
        rope_by_layer_type=True,
        query_scalar="query_pre_attn_scalar",
        embedding_by_width=True,
        logit_cap="final_logit_softcapping",
    ),
    "stablelm": Family(
        "StableLmForCausalLM",
        names=STABLELM,
        qkv_bias="use_qkv_bias",
        head_dim=False,
        norm_eps="layer_norm_eps",
        layer_norm=True,
        qk_norm="each head",
        qk_norm_if="qk_layernorm",
        partial_rotary=True,
        parallel="use_parallel_residual",
        one_norm=True,
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        names=GPT_NEOX,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias=True,
        head_dim=False,
        kv_heads=False,
        norm_eps="layer_norm_eps",
        layer_norm=True,
        gated=False,
        partial_rotary=True,
        parallel="use_parallel_residual",
    ),
}
ARCHITECTURES = {family.architecture: name for name, family in FAMILIES.items()}
# transformers reads a mistral config with layer_types as "ministral": the same model, windowed layer by layer.
MODEL_TYPES = {name: name for name in FAMILIES} | {"ministral": "mistral"}
