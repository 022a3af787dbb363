"""Which text a new token adds, given all before it, without decoding all before it."""

import codecs
from collections.abc import Sequence

from swift_backend.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
# Old tokens that stay in the window; more than the three bytes of an incomplete character, so none is cut apart.
_CONTEXT = 6
# A window of so many tokens is cut.
_WINDOW = 16


class IncrementalDetokenizer:
    """Turns the ids of one answer into text, piece by piece.

    The pieces add up to what decoding prompt and answer together adds to the prompt's text (where a character that the
    prompt left incomplete is completed, or spoilt: all after the part that stays the same). A piece is final: it never
    ends in half a character, nor in bytes that later bytes may still turn into U+FFFD.

        ids before | window | held         text of the window = [ printed | U+FFFD that may become a character ]

    held is a run of byte tokens (<0xE2>) at the end. Their decoder turns the whole run into U+FFFD, the good characters
    too, if it is not UTF-8 to its end; so none of it is final until another token ends the run or nothing can save it.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        """`prompt_ids` give the context in which the first token is read; only the last few are kept."""
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._cut_at = _WINDOW
        self._run = _ByteRun()
        self._window, run = self._end_of(prompt_ids)
        self._printed = self._decode([*self._window, *run])
        for token_id in run:
            self._push_byte(token_id)

    def push(self, token_id: int) -> str:
        """The text that is final after this token, often of this token only; "" while a character is incomplete."""
        if not self._is_visible(token_id):
            return ""  # kept out of the window, where a run of them would push out the visible context
        if token_id in self._tokenizer.byte_values:
            return self._push_byte(token_id)
        self._window += [*self._run.close(), token_id]
        text = self._decode(self._window)
        piece = self._print(text.removesuffix(_REPLACEMENT))
        self._shorten(text)
        return piece

    def flush(self) -> str:
        """What is still held back; call it once, after the last token."""
        piece = self._print(self._decode([*self._window, *self._run.close()]))
        self._window, self._printed = [], ""
        return piece

    def _push_byte(self, token_id: int) -> str:
        """As push, for a byte token."""
        if self._run.broken:
            return _REPLACEMENT
        self._run.add(token_id, self._tokenizer.byte_values[token_id])
        if not self._run.broken:
            return ""
        piece = self._print(self._decode([*self._window, *self._run.held]))
        # All is printed, and the rest of the run is U+FFFD: any one token will do as context.
        self._window, self._run.held = [token_id], []
        self._printed = self._decode(self._window)
        return piece

    def _print(self, text: str) -> str:
        """What `text` has beyond what was printed; they differ only where the prompt's last character changed."""
        start = len(self._printed) if text.startswith(self._printed) else _num_common(text, self._printed)
        piece = text[start:]
        if piece:
            self._printed = text
        return piece

    def _shorten(self, text: str) -> None:
        """Cuts a long window where the rest reads the same without the old tokens."""
        if len(self._window) < self._cut_at:
            return
        rest = self._decode(self._window[-_CONTEXT:])
        # It may begin within a character. Nothing but U+FFFD is fine too: only the last three bytes matter.
        if rest and text.endswith(rest.lstrip(_REPLACEMENT)):
            num_unprinted = len(text) - len(self._printed)
            self._window, self._cut_at = self._window[-_CONTEXT:], _WINDOW
            self._printed = rest[: len(rest) - num_unprinted]
        else:
            self._cut_at = 2 * len(self._window)

    def _end_of(self, prompt_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """The last few visible ids of the prompt before its last run of byte tokens, and that run."""
        context: list[int] = []
        run: list[int] = []
        for token_id in filter(self._is_visible, reversed(prompt_ids)):
            if not context and token_id in self._tokenizer.byte_values:
                run.append(token_id)
                continue
            context.append(token_id)
            if len(context) == _CONTEXT:
                break
        return context[::-1], run[::-1]

    def _is_visible(self, token_id: int) -> bool:
        return self._tokenizer.knows(token_id) and not (self._skip and token_id in self._tokenizer.special_ids)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)


def _num_common(one: str, other: str) -> int:
    """Length of the beginning that both have."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (ours, theirs) in pairs if ours != theirs), min(len(one), len(other)))


class _ByteRun:
    """Byte tokens since the last other token, and whether more of them can still make UTF-8."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.broken = False
        self._utf8 = codecs.getincrementaldecoder("utf-8")("strict")

    def add(self, token_id: int, byte: int) -> None:
        """Takes the next byte of a run that is not broken."""
        self.held.append(token_id)
        try:
            self._utf8.decode(bytes([byte]))
        except UnicodeDecodeError:
            self.broken = True

    def close(self) -> list[int]:
        """The ids that are held; the next byte begins a new run."""
        ids, self.held, self.broken = self.held, [], False
        self._utf8.reset()
        return ids
