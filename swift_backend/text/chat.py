"""Which control tokens of a chat are the template's own, and which a client typed: those stay text."""

import copy
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer

from swift_backend.text.continuation import continuation_ids

Message = dict[str, str]
# Private characters: marks for the template's control tokens go up from here, stand-ins for typed characters down.
_FIRST_MARK, _FIRST_STAND_IN = 0xF0000, 0x10FFFD


@dataclass(frozen=True)
class _Literal:
    """A tokenizer that reads control tokens as text, and knows a mark for each of them instead."""

    rust: RustTokenizer
    marks: dict[int, str]  # id of a control token -> its mark
    meanings: dict[int | None, int]  # id of a mark -> id of the control token


class ControlTokens:
    """Encodes chats so that control tokens which a client typed stay text.

        messages --render--> a stand-in for one character of each typed control token goes through the template
                 --encode--> what control tokens there are now are the template's: they become marks, the stand-ins
                             become the typed characters, and a tokenizer reads it that knows the marks only

    What a message forms only with its neighbours ("<|im_" at its end, "end|>" at the beginning of the next) counts as
    typed. What a role forms with the template does not: some templates write "<|" + role + "|>".

    Limits: added tokens that are not special (often <think> or <tool_call>) are found in typed text too; the tokenizer
    has no way to tell them apart. A template that searches a content for a special token does not find it there.
    """

    def __init__(self, rust: RustTokenizer, unknown_id: int | None) -> None:
        """`rust` is copied when first needed; `unknown_id` stands for text that the vocabulary lacks."""
        self._rust, self._unknown_id = rust, unknown_id
        added = rust.get_added_tokens_decoder()
        self._special = {token_id: token for token_id, token in added.items() if token.special and token.content}
        texts = {token.content for token in self._special.values()}
        self._texts, self._longest = texts, max(map(len, texts), default=0)
        self._beginnings = {text[:num] for text in texts for num in range(1, len(text))}
        self._ends = {text[num:] for text in texts for num in range(1, len(text))}
        self._typed = re.compile(f"(?={_any_of({text[0] for text in texts})})(?={_any_of(texts)})")
        # A normalizer may turn text that looks different, as </S>, into a control token.
        self._disguised = rust.normalizer is not None and any(token.normalized for token in self._special.values())
        self._literal: _Literal | None = None
        self._lock = threading.Lock()

    def encode(self, messages: list[Message], render: Callable[[list[Message]], str], template: str) -> list[int]:
        """Ids of what `render`, which uses `template`, makes of the messages."""
        places = [{key: self._places(key, value) for key, value in message.items()} for message in messages]
        if not self._disguised and not any(found for message in places for found in message.values()):
            return self._rust.encode(render(messages), add_special_tokens=False).ids
        texts = [template, *(value for message in messages for value in message.values() if isinstance(value, str))]
        stand_ins = _StandIns(_unused(texts, range(_FIRST_STAND_IN, 0, -1)))
        masked = [
            {key: stand_ins.put(value, found[key]) for key, value in message.items()}
            for message, found in zip(messages, places, strict=True)
        ]
        return self._encode_rendered(render(masked), stand_ins)

    def _places(self, key: str, value: str) -> set[int]:
        """Where `value` needs a stand-in so that no control token is in it, or reaches into it from outside."""
        if not isinstance(value, str):  # a key that only the template knows
            return set()
        places = {match.start() for match in self._typed.finditer(value)}
        stripped = value.strip()
        if key == "role" or not stripped:
            return places
        start = value.index(stripped)
        return places | {start + place for place in self._border_places(stripped)}

    def _border_places(self, text: str) -> set[int]:
        """Where `text` begins, or is, the inside of a control token, and where the beginnings of some end it."""
        lengths = range(1, min(self._longest, len(text) + 1))
        places = {len(text) - num for num in lengths if text[len(text) - num :] in self._beginnings}
        if any(text[:num] in self._ends for num in lengths):
            places.add(0)
        if len(text) < self._longest and any(text in token for token in self._texts):
            places.add(0)
        return places

    def _encode_rendered(self, text: str, stand_ins: "_StandIns") -> list[int]:
        literal = self._literal_for(text)
        typed = stand_ins.take_back(self._mark(text, literal))
        ids = literal.rust.encode(typed, add_special_tokens=False).ids
        return [piece for token_id in ids for piece in self._meaning(literal, token_id)]

    def _mark(self, text: str, literal: _Literal) -> str:
        """`text` with marks in place of the control tokens that the tokenizer finds in it."""
        found = self._rust.encode(text, add_special_tokens=False)
        parts, end = [], 0
        for token_id, (first, last) in zip(found.ids, found.offsets, strict=True):
            token = self._special.get(token_id)
            start = text.find(token.content, first, last) if token else -1
            if token and start >= 0:  # else an ordinary token, or <unk> for some other text
                parts += [text[end:start], literal.marks[token_id]]
                end = start + len(token.content)
        return "".join([*parts, text[end:]])

    def _meaning(self, literal: _Literal, token_id: int) -> Iterator[int]:
        """A mark's control token; other ids as they are, spelt out where the vocabulary itself holds a typed one."""
        token = self._special.get(token_id)
        if token_id in literal.meanings:
            yield literal.meanings[token_id]
        elif token is None or token_id == self._unknown_id or len(token.content) < 2:
            yield token_id
        else:
            for part in (token.content[:1], token.content[1:]):
                for piece in continuation_ids(literal.rust, part):
                    yield from self._meaning(literal, piece)

    def _literal_for(self, text: str) -> _Literal:
        """The one made before, unless a client typed one of its marks."""
        with self._lock:
            if self._literal is None or not set(text).isdisjoint(self._literal.marks.values()):
                self._literal = self._make_literal(text)
            return self._literal

    def _make_literal(self, text: str) -> _Literal:
        rust = copy.deepcopy(self._rust)
        rust.encode_special_tokens = True
        unused = _unused([text], range(_FIRST_MARK, _FIRST_STAND_IN))
        marks = {token_id: next(unused) for token_id in self._special}
        rust.add_tokens([_like(self._special[token_id], mark) for token_id, mark in marks.items()])
        meanings = {rust.token_to_id(mark): token_id for token_id, mark in marks.items()}
        return _Literal(rust, marks, meanings)


class _StandIns:
    """Characters that stand for others while a template is at work."""

    def __init__(self, unused: Iterator[str]) -> None:
        self._unused = unused
        self._of: dict[str, str] = {}

    def put(self, value: str, places: Collection[int]) -> str:
        """`value` with stand-ins at `places`."""
        if not places:
            return value
        return "".join(self._for(character) if i in places else character for i, character in enumerate(value))

    def take_back(self, text: str) -> str:
        """`text` with the characters that they stand for."""
        return text.translate({ord(stand_in): character for character, stand_in in self._of.items()})

    def _for(self, character: str) -> str:
        if character not in self._of:
            self._of[character] = next(self._unused)
        return self._of[character]


def _unused(texts: Iterable[str], codes: range) -> Iterator[str]:
    """Characters of `codes` that no text has."""
    used = set().union(*texts)
    return (chr(code) for code in codes if chr(code) not in used)


def _any_of(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)"


def _like(token: AddedToken, content: str) -> AddedToken:
    """Another token, not special, that treats the text around it in the same way."""
    return AddedToken(content, lstrip=token.lstrip, rstrip=token.rstrip, normalized=token.normalized, special=False)
