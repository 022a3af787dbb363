"""A GGUF file becomes a plain model: configs, weights, tokenizer and end tokens are its own."""

import json
import os
from pathlib import Path

import pytest
import torch

from swift_backend.model.checkpoint import resolve_model
from swift_backend.model.file_hash import sha256_of
from swift_backend.model.gguf_convert import end_token_ids
from tests.unit.model.tiny_gguf import TEMPLATE, everything_in, write_gguf


def test_a_conversion_is_said_once_and_named_after_content_and_dtype(converted: tuple[Path, Path, list[str]]) -> None:
    source, directory, lines = converted
    assert lines == ["Converting tiny model.gguf to float32 once; this can take a minute."]
    assert directory.name == f"tiny_model-{sha256_of(source)[:16]}-float32"
    assert everything_in(directory.parent) - {f"{directory.name}/{name}" for name in os.listdir(directory)} == {
        directory.name,
        "hashes.json",
    }


def test_the_configs_are_those_of_a_plain_model(converted: tuple[Path, Path, list[str]]) -> None:
    config = json.loads((converted[1] / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["model_type"], config["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert (config["dtype"], config["tie_word_embeddings"], config["eos_token_id"]) == ("float32", True, [0, 2])
    generation = json.loads((converted[1] / "generation_config.json").read_text())
    assert generation == {"bos_token_id": None, "eos_token_id": [0, 2], "pad_token_id": None}


def test_the_logits_are_those_of_the_gguf(converted: tuple[Path, Path, list[str]]) -> None:
    from transformers import AutoModelForCausalLM

    source, directory, _ = converted
    ids = torch.tensor([[5, 9, 200, 17]])
    direct = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        assert torch.equal(ours(ids).logits, direct(ids).logits)


def test_a_head_of_its_own_is_kept(tmp_path: Path) -> None:
    from safetensors import safe_open

    source = write_gguf(tmp_path / "untied.gguf", tied=False)
    directory = resolve_model(str(source), "bfloat16", cache_dir=tmp_path, progress=lambda _: None)
    with safe_open(directory / "model.safetensors", "pt") as file:
        head, embedding = file.get_tensor("lm_head.weight"), file.get_tensor("model.embed_tokens.weight")
    assert head.dtype == torch.bfloat16
    assert not torch.equal(head, embedding)


def test_the_tokenizer_keeps_digits_apart_from_spaces(converted: tuple[Path, Path, list[str]]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted[1])
    # GPT-2's split would give ["Ġ", "Ġ1"-like pieces]; here both spaces merge and the digits stand alone.
    assert tokenizer.convert_ids_to_tokens(tokenizer("  12")["input_ids"]) == ["ĠĠ", "1", "2"]
    assert tokenizer.chat_template == TEMPLATE


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"tokenizer.ggml.eos_token_id": 2}, 2),
        ({}, None),
        (
            {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.eot_token_id": 2, "tokenizer.ggml.eom_token_id": 1},
            [1, 2],
        ),
        (
            {
                "tokenizer.ggml.eos_token_id": 0,
                "tokenizer.ggml.tokens": ["a", "<|im_end|>", "<|end|>", "<|eot_id|>"],
                "tokenizer.ggml.token_type": [3, 3, 1, 3],
                "tokenizer.chat_template": "<|im_end|> <|end|>",
            },
            [0, 1],
        ),
    ],
)
def test_end_tokens(metadata: dict[str, object], expected: object) -> None:
    assert end_token_ids(metadata) == expected
