"""How do committed tokens become emitted text? Detokenise, look for stop strings, hold back what may be one."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from swift_backend.params import SamplingParams
from swift_backend.text.detokenizer import IncrementalDetokenizer
from swift_backend.text.stop import StopMatcher
from swift_backend.text.tokenizer import Tokenizer


class TextStream:
    """The text side of one request."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Seq[int], params: SamplingParams) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids, params.skip_special_tokens)
        self._matcher = StopMatcher(params.stop, params.include_stop_str_in_output)

    def push(self, token_id: int, *, may_stop: bool = True) -> tuple[str, bool]:
        """Text that may be emitted after this token, and whether a stop string is complete.

        may_stop: false before min_tokens, where stop strings that end in the token's text do not count.
        """
        return self._matcher.push(self._detokenizer.push(token_id), may_stop=may_stop)

    def flush(self) -> tuple[str, bool]:
        """What was held back, and whether a stop string is complete in it; once, where none ended the request."""
        text, matched = self._matcher.push(self._detokenizer.flush())
        return (text, True) if matched else (text + self._matcher.flush(), False)
