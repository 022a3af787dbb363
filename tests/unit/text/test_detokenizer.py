"""The pieces of text add up to the whole, whatever the tokens, and never show half a character."""

import itertools
from collections.abc import Sequence
from os.path import commonprefix

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, normalizers

from swift_backend.model.checkpoint import resolve_model
from swift_backend.text.detokenizer import IncrementalDetokenizer
from swift_backend.text.tokenizer import Tokenizer
from tests.unit.text.kinds import BYTES, TEXTS, byte_fallback, byte_level, unigram, wrap


def sentencepiece_like() -> Tokenizer:
    """As byte_fallback, with words that are known here, none of which encoding puts together."""
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
    vocabulary = ["<unk>", "</s>", "<|tool|>", *BYTES, *words]
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
    return wrap(rust)


BYTE_LEVEL, SENTENCEPIECE = byte_level(), sentencepiece_like()
SPELLING_BYTES = [pytest.param(BYTE_LEVEL, id="byte-level"), pytest.param(SENTENCEPIECE, id="sentencepiece")]
KINDS = [*SPELLING_BYTES, pytest.param(byte_fallback(), id="byte-fallback"), pytest.param(unigram(), id="unigram")]


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
    """What the answer adds to the prompt's text: where decoding both begins to differ from decoding the prompt."""
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    whole = tokenizer.decode([*prompt, *answer], skip_special_tokens=skip)
    return whole[len(commonprefix([before, whole])) :]  # noqa: RUF071 -- no paths


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


def test_words_come_at_once_and_spelt_characters_when_the_bytes_end() -> None:
    hello, world = ids_of(SENTENCEPIECE, "▁Hello", "▁world")
    face = byte_ids(SENTENCEPIECE, *"😀".encode())
    assert pieces_of(SENTENCEPIECE, [], [hello, world]) == ["Hello", " world", ""]
    assert pieces_of(SENTENCEPIECE, [hello], [world, *face, world]) == [" world", *[""] * 4, "😀 world", ""]
    assert pieces_of(SENTENCEPIECE, [hello], [*face, *face]) == [*[""] * 8, "😀😀"]


def test_characters_of_a_byte_level_vocabulary_come_when_complete() -> None:
    face = byte_ids(BYTE_LEVEL, *"😀".encode())
    assert pieces_of(BYTE_LEVEL, [], [*face, *face]) == ["", "", "", "😀", "", "", "", "😀", ""]


def test_a_space_survives_a_skipped_token() -> None:
    hello, world, tool = ids_of(SENTENCEPIECE, "▁Hello", "▁world", "<|tool|>")
    assert pieces_of(SENTENCEPIECE, [], [hello, *[tool] * 100, world]) == ["Hello", *[""] * 100, " world", ""]


@pytest.mark.parametrize(("skip", "expected"), [(True, "ab"), (False, "a</s>b")])
def test_special_tokens(skip: bool, expected: str) -> None:
    answer = BYTE_LEVEL.encode("a</s>b")
    assert len(answer) == 3
    assert "".join(pieces_of(BYTE_LEVEL, [], answer, skip)) == expected


@pytest.mark.parametrize("tokenizer", SPELLING_BYTES)
def test_bytes_that_make_no_character_do_not_block_the_stream(tokenizer: Tokenizer) -> None:
    pieces = pieces_of(tokenizer, tokenizer.encode("a"), byte_ids(tokenizer, *[0xFF] * 100))
    assert "".join(pieces) == "\ufffd" * 100
    gaps = [len(list(group)) for empty, group in itertools.groupby(pieces, key=lambda piece: piece == "") if empty]
    assert max(gaps) <= 8


def test_broken_bytes_after_a_character_spelt_as_bytes_do_not_block_the_stream() -> None:
    """Byte fallback turns the whole run of bytes into U+FFFD, so the character that came first was not shown."""
    answer = byte_ids(SENTENCEPIECE, 0xE2, 0x82, 0xAC, *[0xFF] * 3)
    pieces = pieces_of(SENTENCEPIECE, SENTENCEPIECE.encode("a"), answer)
    assert pieces == ["", "", "", "\ufffd" * 4, "\ufffd", "\ufffd", ""]


@pytest.mark.parametrize(("tokenizer", "spoilt"), [(BYTE_LEVEL, "€\ufffd"), (SENTENCEPIECE, "\ufffd" * 5)])
def test_text_after_broken_bytes_is_whole_again(tokenizer: Tokenizer, spoilt: str) -> None:
    answer = [*byte_ids(tokenizer, *"€".encode(), 0xF0, 0x9F), *ids_of(tokenizer, "t", "e")]
    assert "".join(pieces_of(tokenizer, tokenizer.encode("a"), answer)) == spoilt + "te"


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [(BYTE_LEVEL, ["", "", "€", "", "\ufffd"]), (SENTENCEPIECE, ["", "", "", "", "\ufffd" * 4])],
)
def test_an_incomplete_character_is_flushed(tokenizer: Tokenizer, expected: list[str]) -> None:
    answer = byte_ids(tokenizer, *"€".encode(), 0xC3)
    assert pieces_of(tokenizer, tokenizer.encode("a"), answer) == expected


@pytest.mark.parametrize("tokenizer", SPELLING_BYTES)
@pytest.mark.parametrize(("rest", "expected"), [([0xAC], "€x"), ([], "x"), ([0xC3, 0xA4], "ä")])
def test_a_prompt_may_end_within_a_character(tokenizer: Tokenizer, rest: list[int], expected: str) -> None:
    prompt = [*tokenizer.encode("a"), *byte_ids(tokenizer, 0xE2, 0x82)]
    answer = [*byte_ids(tokenizer, *rest), *ids_of(tokenizer, "x")]
    if rest == [0xC3, 0xA4]:
        expected = {BYTE_LEVEL: "äx", SENTENCEPIECE: "\ufffd\ufffdx"}[tokenizer]
    assert "".join(pieces_of(tokenizer, prompt, answer)) == expected == added_text(tokenizer, prompt, answer)


@pytest.mark.parametrize("tokenizer", SPELLING_BYTES)
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
    assert sum(sizes) / len(answer) < 20
    assert "".join(pieces) == added_text(tokenizer, tokenizer.encode("prompt"), answer)


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40) | st.sampled_from(TEXTS)


@pytest.mark.parametrize("tokenizer", KINDS)
@given(prompt=texts, text=texts)
@settings(deadline=None)
def test_any_text_adds_up(tokenizer: Tokenizer, prompt: str, text: str) -> None:
    before, answer = tokenizer.encode(prompt), tokenizer.encode(text)
    assert "".join(pieces_of(tokenizer, before, answer)) == added_text(tokenizer, before, answer)


@st.composite
def ids_of_any_kind(draw: st.DrawFn) -> list[int]:
    """Any of the vocabulary and above, texts, repetitions, and bytes that may or may not make characters."""
    tokenizer = draw(st.shared(st.sampled_from([kind.values[0] for kind in KINDS]), key="tokenizer"))
    spelling = sorted(tokenizer.byte_values) if tokenizer.byte_values else range(tokenizer.vocab_size)
    part = st.one_of(
        st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30),
        st.lists(st.sampled_from(spelling), max_size=12),
        st.text(max_size=8).map(lambda text: spell(tokenizer, text)),
        st.sampled_from(TEXTS).map(tokenizer.encode),
        st.builds(lambda token_id, num: [token_id] * num, st.integers(0, tokenizer.vocab_size), st.integers(0, 40)),
    )
    return [token_id for ids in draw(st.lists(part, max_size=6)) for token_id in ids]


def spell(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of the bytes of `text` where there are byte tokens, else its ids."""
    ids = {byte: token_id for token_id, byte in tokenizer.byte_values.items()}
    return [ids[byte] for byte in text.encode()] if ids else tokenizer.encode(text)


@pytest.mark.slow
@given(
    tokenizer=st.shared(st.sampled_from([kind.values[0] for kind in KINDS]), key="tokenizer"),
    prompt=ids_of_any_kind(),
    answer=ids_of_any_kind(),
    skip=st.booleans(),
)
@settings(deadline=None, max_examples=600)
def test_any_ids_add_up(tokenizer: Tokenizer, prompt: list[int], answer: list[int], skip: bool) -> None:
    """Whatever follows: so no piece was shown too early either."""
    assert "".join(pieces_of(tokenizer, prompt, answer, skip)) == added_text(tokenizer, prompt, answer, skip)


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_the_default_model(default_model: Tokenizer, text: str) -> None:
    prompt, answer = default_model.encode_chat([{"role": "user", "content": "Hi"}]), default_model.encode(text)
    assert "".join(pieces_of(default_model, prompt, answer)) == added_text(default_model, prompt, answer) == text


@pytest.mark.model
@given(data=st.data(), skip=st.booleans())
@settings(deadline=None, max_examples=300)
def test_any_ids_of_the_default_model_add_up(default_model: Tokenizer, data: st.DataObject, skip: bool) -> None:
    single_bytes = st.integers(17, 17 + 255)  # after the control tokens
    ids = st.lists(st.integers(0, default_model.vocab_size + 3) | single_bytes | st.integers(0, 16), max_size=80)
    prompt, answer = data.draw(ids), data.draw(ids)
    assert "".join(pieces_of(default_model, prompt, answer, skip)) == added_text(default_model, prompt, answer, skip)


@pytest.fixture(scope="module")
def default_model() -> Tokenizer:
    return Tokenizer.load(resolve_model(None, "float32"))
