"""How does llama.cpp get the weights that we serve? As a GGUF file in bfloat16, written with its own package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from safetensors import safe_open

ARCHITECTURES = {"llama": MODEL_ARCH.LLAMA, "qwen2": MODEL_ARCH.QWEN2}
BFLOAT16_FILE = 32  # general.file_type of llama.cpp


class NotExported(Exception):
    """The model is of a family that this does not know; the message names it."""


def export(directory: Path, target: Path) -> None:
    """Write target from a Hugging Face directory. Without a vocabulary: it is only ever asked for token ids.

    Raises NotExported.
    """
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    family = config["model_type"]
    if family not in ARCHITECTURES:
        raise NotExported(f"{family}: only {', '.join(ARCHITECTURES)} can be written for llama.cpp")
    scaling = (config.get("rope_parameters") or config.get("rope_scaling") or {}).get("rope_type", "default")
    if scaling != "default":  # or the two would compute different things
        raise NotExported(f"rope scaling {scaling}: it is not written for llama.cpp")
    writer = GGUFWriter(target, family)
    _add_shape(writer, config)
    names = get_tensor_name_map(ARCHITECTURES[family], config["num_hidden_layers"])
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - a handle, not a mapping
                known = names.get_name(name, try_suffixes=(".weight", ".bias"))
                if known is None:
                    raise NotExported(f"{name} has no name in llama.cpp")
                tensor = tensors.get_tensor(name)
                _add(writer, known, _ordered(name, tensor, config) if family == "llama" else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    writer.add_file_type(BFLOAT16_FILE)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_rope_freq_base(config.get("rope_theta") or rope.get("rope_theta") or 10000.0)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def _ordered(name: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """llama.cpp rotates neighbouring values of a llama's queries and keys where Hugging Face rotates halves."""
    heads = {"q_proj": config["num_attention_heads"]}
    heads["k_proj"] = config.get("num_key_value_heads") or heads["q_proj"]
    count = next((count for part, count in heads.items() if f".{part}." in name), None)
    if count is None:
        return tensor
    halves = tensor.reshape(count, 2, tensor.shape[0] // count // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def _add(writer: GGUFWriter, name: str, tensor: torch.Tensor) -> None:
    if tensor.dim() == 1:  # norms and biases are float32 in every file of llama.cpp's
        writer.add_tensor(name, tensor.float().numpy())
        return
    raw = tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
    writer.add_tensor(name, np.ascontiguousarray(raw), raw_dtype=GGMLQuantizationType.BF16)
