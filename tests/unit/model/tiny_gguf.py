"""A GGUF file that is small enough to be converted in every test."""

import json
from pathlib import Path

import gguf
import numpy as np

HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, LAYERS = 16, 32, 4, 2, 2
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def byte_level_vocabulary() -> list[str]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [*CONTROL, *bytes_to_unicode().values(), "ĠĠ"]


def write_gguf(path: Path, *, arch: str = "llama", tied: bool = True, extra: tuple[str, ...] = ()) -> Path:
    """A random two-layer model with a byte-level vocabulary, in GGUF."""
    tokens = byte_level_vocabulary()
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    _add_tokenizer(writer, tokens)
    for name, shape in tensor_shapes(len(tokens), tied, extra).items():
        values = np.random.default_rng(sum(name.encode())).standard_normal(shape, dtype=np.float32)
        writer.add_tensor(name, values * 0.1)
    return _close(writer, path)


def _add_tokenizer(writer: gguf.GGUFWriter, tokens: list[str]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)


def _close(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_gguf_of(directory: Path, path: Path, arch: str, metadata: dict[str, int | float]) -> Path:
    """A checkpoint of another family as llama.cpp's converter would write it: its names, and Gemma's norms plus 1."""
    from safetensors.numpy import load_file

    fields = json.loads((directory / "config.json").read_text())
    tokens = byte_level_vocabulary()
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(fields["num_hidden_layers"])
    writer.add_context_length(fields["max_position_embeddings"])
    writer.add_embedding_length(fields["hidden_size"])
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_head_count(fields["num_attention_heads"])
    writer.add_head_count_kv(fields["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    for key, value in metadata.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{arch}.{key}", value)
    _add_tokenizer(writer, tokens)
    writer.add_pad_token_id(0)  # phi3's default is beyond a tiny vocabulary
    kind = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, fields["num_hidden_layers"])
    for name, values in load_file(directory / "model.safetensors").items():
        offset = 1.0 if arch.startswith("gemma") and name.endswith("norm.weight") else 0.0
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values + np.float32(offset))
    return _close(writer, path)


def tensor_shapes(vocab: int, tied: bool, extra: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        shapes["output.weight"] = (vocab, HIDDEN)
    for layer in range(LAYERS):
        parts = {
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (FEED_FORWARD, HIDDEN),
            "ffn_up": (FEED_FORWARD, HIDDEN),
            "ffn_down": (HIDDEN, FEED_FORWARD),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return shapes | {name: (2,) for name in extra}


def drop_tensor(path: Path, old: bytes, new: bytes) -> Path:
    """Renames a tensor inside the file, so that the old name is missing."""
    assert len(old) == len(new)
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    return path


def everything_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}
