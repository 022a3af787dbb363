"""Which ids spell a text that goes on from other text, and by which ids a word may be generated."""

from collections.abc import Iterable

from tokenizers import Tokenizer as RustTokenizer

# Texts to go on from; the first one that stays whole beside the text is used.
_ANCHORS = ("\n", ".", "a", "1", ")")


def continuation_ids(rust: RustTokenizer, text: str) -> list[int]:
    """Ids of `text` right after other text: without the space that SentencePiece kinds put before a text."""
    uncertain: list[list[int]] = []
    for anchor in _ANCHORS:
        before, both = (rust.encode(part, add_special_tokens=False).ids for part in (anchor, anchor + text))
        if both[: len(before)] != before:
            continue
        if rust.decode(both, skip_special_tokens=False) == anchor + text:
            return both[len(before) :]
        uncertain.append(both[len(before) :])  # the vocabulary or the normalizer changes the text
    return uncertain[0] if uncertain else rust.encode(text, add_special_tokens=False).ids


def word_ids(rust: RustTokenizer, word: str) -> list[tuple[int, ...]]:
    """The id sequences of `word` after other text, after a space, and at the start of a text.

    As in vLLM, spaces that `word` begins with do not count.
    """
    word = word.lstrip(" ") or word
    start = rust.encode(word, add_special_tokens=False).ids
    return [tuple(ids) for ids in (continuation_ids(rust, word), continuation_ids(rust, " " + word), start)]


def without_implied(sequences: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The distinct, non-empty ones, without those that end in another: forbidding that one forbids both."""
    distinct = dict.fromkeys(filter(None, sequences))
    lengths = sorted({len(ids) for ids in distinct})
    return tuple(ids for ids in distinct if not any(ids[-n:] in distinct for n in lengths if n < len(ids)))
