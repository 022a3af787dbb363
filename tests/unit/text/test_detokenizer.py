"""The pieces of text add up to the whole, whatever the tokens, and never show half a character."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as RustTokenizer

from swift_backend.model.checkpoint import resolve_model
from swift_backend.text.detokenizer import IncrementalDetokenizer
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


def wrap(rust: RustTokenizer) -> Tokenizer:
    from transformers import PreTrainedTokenizerFast

    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=rust, eos_token="</s>"))


def byte_level() -> Tokenizer:
    """GPT-2's kind; merges across the bytes of different characters occur."""
    rust = RustTokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["</s>", "<|tool|>"],
        show_progress=False,
    )
    rust.train_from_iterator(TEXTS * 3, trainer)
    return wrap(rust)


def sentencepiece_like() -> Tokenizer:
    """Llama 2's kind: metaspace, byte fallback, one leading space stripped from the whole text."""
    words = [
        "▁Hello",
        "▁world",
        "▁",
        "▁▁",
        "world",
        "Hello",
        ",",
        ".",
        "\n",
        *"abcdefghijklmnopqrstuvwxyz",
        "▁the",
        "本",
    ]
    vocabulary = ["<unk>", "</s>", "<|tool|>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    merges = [("▁", "▁")]
    rust = RustTokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(vocabulary)}, merges=merges, unk_token="<unk>", byte_fallback=True
        )
    )
    rust.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    rust.add_special_tokens([AddedToken("</s>"), AddedToken("<|tool|>")])
    return wrap(rust)


BYTE_LEVEL, SENTENCEPIECE = byte_level(), sentencepiece_like()
KINDS = [pytest.param(BYTE_LEVEL, id="byte-level"), pytest.param(SENTENCEPIECE, id="sentencepiece")]


def ids_of(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    """Ids of tokens as the vocabulary spells them."""
    vocabulary = tokenizer._rust.get_vocab()
    return [vocabulary[token] for token in tokens]


def byte_ids(tokenizer: Tokenizer, *values: int) -> list[int]:
    """Ids of single bytes."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    spelling = bytes_to_unicode() if tokenizer is BYTE_LEVEL else {value: f"<0x{value:02X}>" for value in values}
    return ids_of(tokenizer, *(spelling[value] for value in values))


def pieces_of(tokenizer: Tokenizer, prompt: Sequence[int], answer: Sequence[int], skip: bool = True) -> list[str]:
    """What each push and then flush returned."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip)
    return [*map(detokenizer.push, answer), detokenizer.flush()]


def added_text(tokenizer: Tokenizer, prompt: Sequence[int], answer: Sequence[int], skip: bool = True) -> str:
    """What the answer adds to the prompt's text, found by decoding all of it."""
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    whole = tokenizer.decode([*prompt, *answer], skip_special_tokens=skip)
    assert whole.startswith(before)
    return whole[len(before) :]


@pytest.mark.parametrize("tokenizer", KINDS)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("prompt", ["", "Hello", "日本", "a long prompt of more tokens than the context keeps "])
def test_the_pieces_add_up(tokenizer: Tokenizer, prompt: str, text: str) -> None:
    before, answer = tokenizer.encode(prompt), tokenizer.encode(text)
    assert "".join(pieces_of(tokenizer, before, answer)) == added_text(tokenizer, before, answer)


@pytest.mark.parametrize("tokenizer", KINDS)
@pytest.mark.parametrize("text", [text for text in TEXTS if "\ufffd" not in text])
def test_no_piece_shows_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    assert "\ufffd" not in "".join(pieces_of(tokenizer, [], tokenizer.encode(text)))


def test_words_come_at_once_and_characters_when_complete() -> None:
    hello, world = ids_of(SENTENCEPIECE, "▁Hello", "▁world")
    face = ids_of(SENTENCEPIECE, "<0xF0>", "<0x9F>", "<0x98>", "<0x80>")
    assert pieces_of(SENTENCEPIECE, [], [hello, world]) == ["Hello", " world", ""]
    assert pieces_of(SENTENCEPIECE, [hello], [world, *face, *face]) == [
        " world",
        "",
        "",
        "",
        "😀",
        "",
        "",
        "",
        "😀",
        "",
    ]


def test_a_space_survives_a_skipped_token() -> None:
    hello, world, tool = ids_of(SENTENCEPIECE, "▁Hello", "▁world", "<|tool|>")
    assert pieces_of(SENTENCEPIECE, [], [hello, *[tool] * 100, world]) == ["Hello", *[""] * 100, " world", ""]


@pytest.mark.parametrize(("skip", "expected"), [(True, "ab"), (False, "a</s>b")])
def test_special_tokens(skip: bool, expected: str) -> None:
    answer = BYTE_LEVEL.encode("a</s>b")
    assert len(answer) == 3
    assert "".join(pieces_of(BYTE_LEVEL, [], answer, skip)) == expected


@pytest.mark.parametrize("tokenizer", KINDS)
def test_bytes_that_make_no_character_do_not_block_the_stream(tokenizer: Tokenizer) -> None:
    pieces = pieces_of(tokenizer, tokenizer.encode("a"), byte_ids(tokenizer, *[0xFF] * 100))
    assert "".join(pieces) == "\ufffd" * 100
    gaps = [len(list(group)) for empty, group in itertools.groupby(pieces, key=lambda piece: piece == "") if empty]
    assert max(gaps) <= 8


def test_broken_bytes_after_a_character_spelt_as_bytes_do_not_block_the_stream() -> None:
    """Byte fallback turns the whole run of bytes into U+FFFD, the character that was shown already included."""
    answer = byte_ids(SENTENCEPIECE, 0xE2, 0x82, 0xAC, *[0xFF] * 10)
    assert pieces_of(SENTENCEPIECE, SENTENCEPIECE.encode("a"), answer)[2:10] == ["€", *[""] * 6, "\ufffd" * 6]


@pytest.mark.parametrize("tokenizer", KINDS)
def test_text_after_broken_bytes_is_whole_again(tokenizer: Tokenizer) -> None:
    euro = byte_ids(tokenizer, 0xE2, 0x82, 0xAC)
    answer = [*euro, *byte_ids(tokenizer, 0xF0, 0x9F), *tokenizer.encode("the world")]
    text = "".join(pieces_of(tokenizer, tokenizer.encode("a"), answer))
    assert text.startswith("€\ufffd")
    assert text.endswith("the world")


@pytest.mark.parametrize("tokenizer", KINDS)
def test_an_incomplete_character_is_flushed_as_one_replacement(tokenizer: Tokenizer) -> None:
    answer = byte_ids(tokenizer, 0xE2, 0x82, 0xAC, 0xC3)
    assert pieces_of(tokenizer, tokenizer.encode("a"), answer) == ["", "", "€", "", "\ufffd"]


@pytest.mark.parametrize("tokenizer", KINDS)
def test_a_prompt_may_end_within_a_character(tokenizer: Tokenizer) -> None:
    prompt = [*tokenizer.encode("a"), *byte_ids(tokenizer, 0xE2, 0x82)]
    assert "".join(pieces_of(tokenizer, prompt, [*byte_ids(tokenizer, 0xAC), *tokenizer.encode("the")])).startswith("€")


@pytest.mark.parametrize("tokenizer", KINDS)
def test_flush_empties(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, [], True)
    detokenizer.push(byte_ids(tokenizer, 0xE2)[0])
    assert (detokenizer.flush(), detokenizer.flush()) == ("\ufffd", "")


@pytest.mark.parametrize("tokenizer", KINDS)
@pytest.mark.parametrize("text", ["word and word ", "日本", "👍🏽", "\n", "\xff", ""])
def test_the_work_per_token_does_not_grow(tokenizer: Tokenizer, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    decode = tokenizer.decode

    def counting_decode(ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        sizes.append(len(ids))
        return decode(ids, skip_special_tokens=skip_special_tokens)

    monkeypatch.setattr(tokenizer, "decode", counting_decode)
    answer = tokenizer.encode(text * 300) if text else [tokenizer.vocab_size + 7] * 300
    pieces = pieces_of(tokenizer, tokenizer.encode("prompt"), answer)
    assert max(sizes) <= 48
    assert sum(sizes) / len(answer) < 40
    assert "".join(pieces) == added_text(tokenizer, tokenizer.encode("prompt"), answer)


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40) | st.sampled_from(TEXTS)


@pytest.mark.parametrize("tokenizer", KINDS)
@given(prompt=texts, text=texts)
@settings(deadline=None)
def test_any_text_adds_up(tokenizer: Tokenizer, prompt: str, text: str) -> None:
    before, answer = tokenizer.encode(prompt), tokenizer.encode(text)
    assert "".join(pieces_of(tokenizer, before, answer)) == added_text(tokenizer, before, answer)


@given(
    prompt=st.lists(st.integers(0, 259), max_size=12),
    answer=st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1), max_size=60),
    skip=st.booleans(),
)
@settings(deadline=None)
def test_any_ids_of_a_byte_level_vocabulary_add_up(prompt: list[int], answer: list[int], skip: bool) -> None:
    prompt = [*prompt, *BYTE_LEVEL.encode("a")]  # ends in a whole character, else "what is added" has no meaning
    assert "".join(pieces_of(BYTE_LEVEL, prompt, answer, skip)) == added_text(BYTE_LEVEL, prompt, answer, skip)


# Without the letters that are spelt as bytes: broken bytes beside them may swallow these.
UNSPELT = [i for i in range(SENTENCEPIECE.vocab_size + 3) if not 0 < i - byte_ids(SENTENCEPIECE, 0)[0] < 0x80]


@given(answer=st.lists(st.sampled_from(UNSPELT), max_size=80), skip=st.booleans())
@settings(deadline=None)
def test_any_ids_of_a_byte_fallback_vocabulary_end(answer: list[int], skip: bool) -> None:
    """Equality has no meaning for broken bytes here, but every other token's text must come out, in order."""
    text = "".join(pieces_of(SENTENCEPIECE, SENTENCEPIECE.encode("Hello"), answer, skip))
    whole = added_text(SENTENCEPIECE, SENTENCEPIECE.encode("Hello"), answer, skip)
    assert only_letters(text) == only_letters(whole)


def only_letters(text: str) -> str:
    return "".join(character for character in text if "a" <= character <= "z")


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_the_default_model(text: str) -> None:
    tokenizer = Tokenizer.load(resolve_model(None, "float32"))
    prompt, answer = tokenizer.encode_chat([{"role": "user", "content": "Hi"}]), tokenizer.encode(text)
    assert "".join(pieces_of(tokenizer, prompt, answer)) == added_text(tokenizer, prompt, answer) == text
