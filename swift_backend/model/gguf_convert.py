"""How a GGUF file becomes a Hugging Face directory: transformers reads it, we write it."""

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift_backend.errors import ModelLoadError
from swift_backend.model.gguf_architectures import refuse_what_would_be_lost
from swift_backend.model.gguf_header import GgufHeader

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

# Vocabularies whose merges were learnt with every digit apart; transformers 5.24 gives them GPT-2's split,
# which glues a space to a digit. The names are llama.cpp's values of tokenizer.ggml.pre.
_DIGITS_APART = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
# How chat templates end a turn. A file declares one end token; a template that uses another one ends there too.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>")
_CONTROL_TOKEN = 3
# What transformers raises of a file that it cannot read.
_REFUSALS = (
    AssertionError,
    ImportError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)


def convert_gguf(source: Path, header: GgufHeader, target: Path, dtype: str) -> None:
    """Writes config, generation config, tokenizer and weights (in `dtype`) into the directory `target`.

    Raises ModelLoadError if the file cannot be carried over exactly, and OSError. Needs the model in `dtype` in
    memory once, plus its largest tensor in float32.
    """
    refuse_what_would_be_lost(source.name, header)
    try:
        with _quiet():
            _save_tokenizer(source, header, target)
            model = _load_model(source, dtype)
    except _REFUSALS as error:
        reason = " ".join(str(error).split())
        raise ModelLoadError(
            f"{source.name} (GGUF architecture {header.architecture!r}) cannot be converted: {reason}"
        ) from error
    _save_configs(model, header, target, dtype)
    _save_weights(model, target)


def _load_model(source: Path, dtype: str) -> "PreTrainedModel":
    import torch
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=getattr(torch, dtype), output_loading_info=True
    )
    model: PreTrainedModel = loaded[0]
    if missing := sorted(loaded[1]["missing_keys"]):  # transformers would give them random values
        raise ValueError(f"the file has no {missing[0]} ({len(missing)} missing in all)")
    return model


def _save_tokenizer(source: Path, header: GgufHeader, target: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    # AutoTokenizer would parse the whole file once more, only to find this class.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source.parent, gguf_file=source.name)
    if header.metadata.get("tokenizer.ggml.pre") in _DIGITS_APART:
        _split_digits(tokenizer)
    tokenizer.save_pretrained(target)


def _split_digits(tokenizer: "PreTrainedTokenizerFast") -> None:
    from tokenizers import pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])


def _save_configs(model: "PreTrainedModel", header: GgufHeader, target: Path, dtype: str) -> None:
    """The weights are no longer quantised, so no trace of that may stay in the config."""
    config: dict[str, Any] = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    # Where the file is silent, transformers fills in its architecture's defaults, which name ids of other vocabularies.
    token_ids = {
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_token_ids(header.metadata),
        "pad_token_id": header.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    _write_json(target / "config.json", config | {"architectures": [type(model).__name__], "dtype": dtype} | token_ids)
    _write_json(target / "generation_config.json", token_ids)


def end_token_ids(metadata: Mapping[str, object]) -> int | list[int] | None:
    """The ids that end a text: those that the file declares, then turn ends that its chat template uses."""
    declared = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ids = [token_id for token_id in declared if isinstance(token_id, int)]
    tokens, kinds = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    template = str(metadata.get("tokenizer.chat_template", ""))
    if isinstance(tokens, list) and isinstance(kinds, list):
        pairs = enumerate(zip(tokens, kinds, strict=False))
        control = {token: token_id for token_id, (token, kind) in pairs if kind == _CONTROL_TOKEN}
        ids += [control[token] for token in _TURN_ENDS if token in template and token in control]
    unique = list(dict.fromkeys(ids))
    return unique[0] if len(unique) == 1 else unique or None


def _save_weights(model: "PreTrainedModel", target: Path) -> None:
    from safetensors.torch import save_file

    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]  # the same memory as the embedding, which safetensors refuses to write twice
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers' progress bars and advice out of a server's log while it converts, and restores both."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # one bar ignores the switch above
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
