"""How text becomes token ids and back: a thin, thread-safe wrapper around the model's own tokenizer."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift_backend.errors import InvalidRequest, ModelLoadError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Tokenizer:
    """The tokenizer of one model directory.

    Safe to share between threads: after `load` nothing is changed. transformers' own `encode` sets truncation and
    padding on the shared Rust tokenizer with each call; we call the Rust tokenizer directly, which also never warns
    about long prompts.

    Example:
        tokenizer = Tokenizer.load(directory)
        ids = tokenizer.encode("Hello")
    """

    def __init__(self, wrapped: "PreTrainedTokenizerFast") -> None:
        """Takes over `wrapped`; nobody else may use it."""
        self._wrapped = wrapped
        self._rust = wrapped.backend_tokenizer
        self._rust.no_truncation()
        self._rust.no_padding()
        added = wrapped.added_tokens_decoder
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._vocab_size = len(wrapped)

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer":
        """Loads the tokenizer files in `directory`; never asks the network. Raises ModelLoadError."""
        from transformers import AutoTokenizer

        try:
            wrapped: Any = AutoTokenizer.from_pretrained(directory, use_fast=True, local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
            reason = " ".join(str(error).split())
            raise ModelLoadError(f"The tokenizer in {directory} cannot be loaded: {reason}") from error
        if not getattr(wrapped, "is_fast", False):
            raise ModelLoadError(f"The tokenizer in {directory} has no fast version (tokenizer.json), which we need.")
        return cls(wrapped)

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works."""
        return bool(self._wrapped.chat_template)

    @property
    def vocab_size(self) -> int:
        """Number of ids that the tokenizer knows, added ones included; a model's head may have more rows."""
        return self._vocab_size

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that `decode` leaves out by default, such as the end-of-text token."""
        return self._special_ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`, with the special tokens that the model wants around a prompt, such as BOS.

        Control tokens spelled out in `text` become control tokens: a raw prompt is taken as it is.
        """
        return list(self._rust.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Ids of a conversation up to where the assistant's answer begins. Raises InvalidRequest."""
        return self.encode(self.render_chat(messages), add_special_tokens=False)

    def render_chat(self, messages: list[dict[str, str]]) -> str:
        """The prompt that the chat template makes of `messages` (`role` and `content` each). Raises InvalidRequest."""
        from jinja2 import TemplateError

        if not self.has_chat_template:
            raise InvalidRequest("messages", "this model has no chat template; use text_input instead")
        _check_messages(messages)
        try:
            text = self._wrapped.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise InvalidRequest("messages", f"the model's chat template refuses them: {error}") from error
        return str(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids` exactly as stored, without tidying of spaces; ids outside the vocabulary give nothing."""
        return str(self._rust.decode(ids, skip_special_tokens=skip_special_tokens))


def _check_messages(messages: list[dict[str, str]]) -> None:
    if not messages:
        raise InvalidRequest("messages", "must not be empty")
    for index, message in enumerate(messages):
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise InvalidRequest("messages", f"message {index} needs a string {key}, got {message.get(key)!r}")
