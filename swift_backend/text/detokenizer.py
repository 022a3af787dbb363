"""Which text a new token adds, given all before it, without decoding all before it."""

from collections.abc import Sequence

from swift_backend.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
# Tokens decoded anew for each push: cut back to about CONTEXT when they are WINDOW.
_CONTEXT = 6
_WINDOW = 16
# A window that cannot be cut cleanly (bytes that never make a character) is cut anyway.
_WINDOW_LIMIT = 40
# A character has at most four bytes, so at most three replacement characters can still become one.
_MAX_INCOMPLETE = 3
# With byte-fallback vocabularies an incomplete character spoils the bytes before it; wait so many tokens for the rest.
_PATIENCE = 6


class IncrementalDetokenizer:
    """Turns the ids of one answer into text, piece by piece.

    The pieces add up to what decoding prompt and answer together adds to the prompt's text. A piece never ends in half
    a character; at most a few tokens are held back for one, then bytes that make no character come out as U+FFFD.

        window = [ context | held ]     text of the window = [ printed | returned next | incomplete ]
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        """`prompt_ids` give the context in which the first token is read; only the last few are kept."""
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._window = self._last_context(prompt_ids)
        self._printed = self._decode(self._window)
        self._num_waiting = 0
        self._cut_at = _WINDOW

    def push(self, token_id: int) -> str:
        """The text that may be shown after this token, often of this token only; "" while a character is incomplete."""
        if self._skip and token_id in self._tokenizer.special_ids:
            return ""  # kept out of the window, where a run of them would push out the visible context
        self._window.append(token_id)
        self._num_waiting += 1
        text = self._decode(self._window)
        complete = text[: len(text) - _num_incomplete(text)]
        start = self._start_of_new(complete, whole=complete == text)
        if start is None:
            return ""
        piece = complete[start:]
        if piece:
            self._printed, self._num_waiting = complete, 0
        self._shorten(text, len(text) - len(complete))
        return piece

    def flush(self) -> str:
        """What is still held back; call it once, after the last token."""
        text, printed = self._decode(self._window), self._printed
        self._window, self._printed, self._num_waiting = [], "", 0
        if text.startswith(printed):
            return text[len(printed) :]
        return _REPLACEMENT

    def _start_of_new(self, complete: str, whole: bool) -> int | None:
        """Where new text begins in `complete`, or None if that cannot be said before more tokens are here."""
        if complete.startswith(self._printed):
            return len(self._printed)
        if whole or self._num_waiting > _PATIENCE:
            # Text that was shown reads differently now: an incomplete end of the prompt was completed, or bytes that
            # make no character spoilt those before them.
            return len(self._printed.rstrip(_REPLACEMENT))
        return None

    def _shorten(self, text: str, num_incomplete: int) -> None:
        """Drops old tokens from a long window where the rest reads the same without them."""
        if len(self._window) < self._cut_at:
            return
        for num in range(_CONTEXT, _WINDOW):
            rest = self._decode(self._window[-num:])
            if len(rest) > num_incomplete and text.endswith(rest):
                return self._cut(num, rest, num_incomplete)
        self._cut_at += _WINDOW  # a try costs ten decodings, too many for every token
        if self._cut_at > _WINDOW_LIMIT:
            self._cut(_CONTEXT, self._decode(self._window[-_CONTEXT:]), num_incomplete)

    def _cut(self, num_kept: int, rest: str, num_incomplete: int) -> None:
        self._window, self._cut_at = self._window[-num_kept:], _WINDOW
        self._printed = rest[: max(0, len(rest) - num_incomplete)]

    def _last_context(self, prompt_ids: Sequence[int]) -> list[int]:
        """The last few visible ids of the prompt, beginning at a whole character where there is one."""
        visible: list[int] = []
        for token_id in reversed(prompt_ids):
            if not (self._skip and token_id in self._tokenizer.special_ids):
                visible.append(token_id)
            if len(visible) == _CONTEXT + _MAX_INCOMPLETE:
                break
        visible.reverse()
        for num in range(_CONTEXT, len(visible)):
            if not self._decode(visible[-num:]).startswith(_REPLACEMENT):
                return visible[-num:]
        return visible

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)


def _num_incomplete(text: str) -> int:
    """Number of replacement characters at the end of `text` that the next tokens may still turn into a character."""
    return min(len(text) - len(text.rstrip(_REPLACEMENT)), _MAX_INCOMPLETE)
