"""How text becomes token ids and back: a thin, thread-safe wrapper around the model's own tokenizer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift_backend.errors import InvalidRequest, ModelLoadError
from swift_backend.request_keys import is_text
from swift_backend.text.chat import ControlTokens
from swift_backend.text.continuation import without_implied, word_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer
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
        self._byte_values = _byte_values(self._rust)
        self._controls = ControlTokens(self._rust, wrapped.unk_token_id)

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

    @property
    def byte_values(self) -> Mapping[int, int]:
        """The byte of each id that `decode` reads as one byte of a character (byte fallback's <0xE2>)."""
        return self._byte_values

    def knows(self, token_id: int) -> bool:
        """Whether `token_id` is in the vocabulary; `decode` reads others as nothing."""
        return self._rust.id_to_token(token_id) is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`, with the special tokens that the model wants around a prompt, such as BOS.

        Control tokens spelled out in `text` become control tokens: a raw prompt is taken as it is.
        """
        return list(self._rust.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Ids of a conversation up to where the assistant's answer begins. Raises InvalidRequest.

        Control tokens spelled out in a message stay text; ControlTokens says where that cannot be.
        """
        self._check_chat(messages)
        return self._controls.encode(messages, self._render, str(self._wrapped.chat_template))

    def render_chat(self, messages: list[dict[str, str]]) -> str:
        """The prompt that the chat template makes of `messages` (`role` and `content` each). Raises InvalidRequest."""
        self._check_chat(messages)
        return self._render(messages)

    def bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The id sequences by which `words` may be generated: after other text, after a space, first in a text.

        A sequence that ends in another of them is left out, as the shorter one forbids it too. Spaces that a word
        begins with do not count. A control token spelled out is that token; what the vocabulary lacks gives nothing.
        """
        unknown = self._wrapped.unk_token_id
        sequences = (
            ids
            for word in filter(None, words)
            for ids in word_ids(self._rust, word)
            if unknown not in ids or word.strip() == self._wrapped.unk_token
        )
        return without_implied(sequences)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids` exactly as stored, without tidying of spaces; ids outside the vocabulary give nothing."""
        return str(self._rust.decode(ids, skip_special_tokens=skip_special_tokens))

    def _check_chat(self, messages: list[dict[str, str]]) -> None:
        if not self.has_chat_template:
            raise InvalidRequest("messages", "this model has no chat template; use text_input instead")
        _check_messages(messages)

    def _render(self, messages: list[dict[str, str]]) -> str:
        from jinja2 import TemplateError

        # Whatever a template does with messages that it was not written for: "x" + none, a missing key, endless calls.
        failures = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
        try:
            return str(self._wrapped.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except failures as error:
            reason = str(error) or type(error).__name__
            raise InvalidRequest("messages", f"the model's chat template refuses them: {reason}") from error


def _check_messages(messages: list[dict[str, str]]) -> None:
    if not messages:
        raise InvalidRequest("messages", "must not be empty")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequest(
                "messages", f"message {index} must be an object with role and content, got {message!r}"
            )
        for key in ("role", "content"):
            value = message.get(key)
            if not isinstance(value, str):
                raise InvalidRequest("messages", f"message {index} needs a string {key}, got {value!r}")
            if not is_text(value):
                raise InvalidRequest("messages", f"the {key} of message {index} holds half a surrogate pair")


def _byte_values(rust: "RustTokenizer") -> dict[int, int]:
    """Byte tokens by id, none if the decoder takes them for text."""
    if rust.decoder is None or rust.decoder.decode(["<0x41>"]) != "A":
        return {}
    names = {form.format(byte): byte for byte in range(256) for form in ("<0x{:02X}>", "<0x{:02x}>")}
    ids = {rust.token_to_id(name): byte for name, byte in names.items()}
    return {token_id: byte for token_id, byte in ids.items() if token_id is not None}
