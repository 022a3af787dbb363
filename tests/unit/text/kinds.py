"""Tokenizers of the kinds that models come with, made here from a few texts."""

import json
from collections.abc import Sequence

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as RustTokenizer

from swift_backend.text.tokenizer import Tokenizer

TEXTS = [
    "Hello world, this is a test.",
    "日本語のテキストと中文。",
    "family: 👨‍👩‍👧‍👦 flag: 🏳️‍🌈 skin: 👍🏽",
    "مرحبا بالعالم، كيف الحال؟",
    "e\u0301a\u0308 Z\u0351a\u0346l\u0351g\u0353o",
    "line\n\n  indented\n\ttab\r\n",
    "def f(x):\n    return {'a': x ** 2}  # 100%\n",
    "   leading and trailing   ",
    "replacement \ufffd inside \ufffd\ufffd",
]
CONTROLS = ["<|tool|>", "<|im_start|>", "<|im_end|>", "<|im_end|>x", "</s>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def wrap(
    rust: RustTokenizer, template: str = TEMPLATE, normalized: bool = False, controls: Sequence[str] = CONTROLS
) -> Tokenizer:
    """With control tokens, "<think>", which is not special, and a chat template."""
    from transformers import PreTrainedTokenizerFast

    rust.add_special_tokens([AddedToken(text, normalized=normalized) for text in controls])
    rust.add_tokens([AddedToken("<think>", normalized=False)])
    unknown = "<unk>" if rust.token_to_id("<unk>") is not None else None
    return Tokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=rust, eos_token=controls[-1], unk_token=unknown, chat_template=template
        )
    )


def byte_level(template: str = TEMPLATE, controls: Sequence[str] = CONTROLS) -> Tokenizer:
    """GPT-2's kind; merges across the bytes of different characters occur."""
    rust = RustTokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    rust.train_from_iterator(TEXTS * 3, trainer)
    return wrap(rust, template, controls=controls)


def byte_fallback(template: str = TEMPLATE, controls: Sequence[str] = CONTROLS, normalized: bool = False) -> Tokenizer:
    """Llama 2's kind: a space before the text, bytes for unknown characters, one space taken off the whole text."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learner = RustTokenizer(models.BPE())
    learner.normalizer = normalizer
    learner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    learner.train_from_iterator([*TEXTS[:1], *TEXTS[3:8]] * 3, trainers.BpeTrainer(vocab_size=150, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    tokens = ["<unk>", *BYTES, *learnt["vocab"]]
    rust = RustTokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(pair) for pair in learnt["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    rust.normalizer = normalizer
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    rust.add_special_tokens([AddedToken("<unk>", normalized=normalized)])
    return wrap(rust, template, normalized, controls)


def unigram(template: str = TEMPLATE, scheme: str = "always") -> Tokenizer:
    """SentencePiece's own kind, as T5: unknown characters are one <unk>. The vocabulary holds </s> too."""
    rust = RustTokenizer(models.Unigram())
    rust.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    rust.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    rust.train_from_iterator([*TEXTS, "< / | _ > O"] * 3, trainer)
    return wrap(rust, template)
