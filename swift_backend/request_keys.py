"""Which sampling keys does a request have, and what may each hold? One table for check, message, README and tests."""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from swift_backend.errors import InvalidRequest

SPECULATION_MODES = ("auto", "skip", "ngram", "similarity", "search", "static", "fixed", "lookahead", "off")
# Where the contract sets no upper end: what fits the request parameters of every client.
LARGEST = 2**31 - 1
MAX_STOPS = 16
NUMERAL = re.compile(r"\s*[+-]?[0-9.]+([eE][+-]?[0-9]+)?\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Range:
    """The interval a number must lie in."""

    low: float
    high: float
    integer: bool = False
    low_open: bool = False

    def __str__(self) -> str:
        return f"{'(' if self.low_open else '['}{self.low}, {self.high}]"

    def holds(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        return above and value <= self.high


@dataclass(frozen=True, slots=True)
class Key:
    """One row of the table: how a value is checked and turned into ours, and how the README describes it.

    parse: (name, value) → the checked value; raises InvalidRequest naming the key, the value and what is allowed.
    """

    kind: str
    allowed: str
    parse: Callable[[str, Any], Any]
    limits: Range | None = None


def known_key(name: str) -> Key:
    """The row of a key; InvalidRequest suggests the nearest known one."""
    if name not in KEYS:
        short = name[:80]
        raise InvalidRequest(short, f"{short or repr(short)} is not a sampling parameter{_nearest(short)}")
    return KEYS[name]


def parse_key(name: str, value: Any) -> Any:
    """The checked value of a key; InvalidRequest names the key, the value and what is allowed."""
    return known_key(name).parse(name, value)


def shown(value: Any) -> str:
    """A value as it stands in a message; a huge one is cut."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxlong = shortener.maxother = 80
    return shortener.repr(value)


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name, KEYS, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _number(limits: Range) -> Key:
    def parse(name: str, value: Any) -> int | float:
        number = as_number(name, value, limits.integer)
        if not limits.holds(number):
            raise InvalidRequest(name, f"{name} must be in {limits}, got {shown(value)}")
        return number

    return Key("integer" if limits.integer else "number", str(limits), parse, limits)


def as_number(name: str, value: Any, integer: bool) -> int | float:
    """Numbers as themselves; strings that spell one are accepted, as Triton's vLLM backend does."""
    wanted = "an integer" if integer else "a number"
    if isinstance(value, bool) or (isinstance(value, str) and not NUMERAL.fullmatch(value)):
        raise InvalidRequest(name, f"{name} must be {wanted}, got {shown(value)}")
    try:
        number = _as_integer(value) if integer else float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(name, f"{name} must be {wanted}, got {shown(value)}") from None
    if not integer and not math.isfinite(number):
        raise InvalidRequest(name, f"{name} must be finite, got {shown(value)}")
    return number


def _as_integer(value: Any) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(value)
    return int(value)


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise InvalidRequest(name, f"{name} must be true or false, got {shown(value)}")
    return value


def _stop(name: str, value: Any) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    if not _are_texts(items):
        raise InvalidRequest(name, f"{name} must be a non-empty string or a list of them, got {shown(value)}")
    if len(items) > MAX_STOPS:
        raise InvalidRequest(name, f"{name} takes at most {MAX_STOPS} strings, got {len(items)}")
    return tuple(items)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not _are_texts(value):
        raise InvalidRequest(name, f"{name} must be a list of non-empty strings, got {shown(value)}")
    return tuple(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) and item and is_text(item) for item in value)


def is_text(value: str) -> bool:
    """Half a surrogate pair, which JSON escapes can spell, is none that a tokenizer takes."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidRequest(name, f"{name} must be a list of token ids, got {shown(value)}")
    return tuple(_token_id(name, item) for item in value)


def _token_id(name: str, value: Any) -> int:
    token = as_number(name, value, integer=True)
    if not 0 <= token <= LARGEST:
        raise InvalidRequest(name, f"{name}: a token id must be in [0, {LARGEST}], got {shown(value)}")
    return int(token)


def _logit_bias(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """Pairs, so that SamplingParams stay hashable; JSON spells the ids as strings."""
    ours = isinstance(value, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value)
    if not isinstance(value, Mapping) and not ours:
        raise InvalidRequest(name, f"{name} must be an object of token id → number, got {shown(value)}")
    pairs: dict[int, float] = {}
    for key, item in value.items() if isinstance(value, Mapping) else value:
        token, bias = _token_id(name, key), as_number(name, item, integer=False)
        if not BIAS.holds(bias):
            raise InvalidRequest(name, f"{name}[{token}] must be in {BIAS}, got {shown(item)}")
        if pairs.setdefault(token, bias) != bias:
            raise InvalidRequest(name, f"{name}[{token}] is given twice with different values")
    return tuple(pairs.items())


def _logprobs(name: str, value: Any) -> int | float | None:
    """A number; false is how Triton's OpenAI frontend may say that none are asked for."""
    return None if value is False else _number(LOGPROBS).parse(name, value)


def _mode(name: str, value: Any) -> str:
    if value not in SPECULATION_MODES:
        raise InvalidRequest(name, f"{name} must be one of {', '.join(SPECULATION_MODES)}, got {shown(value)}")
    return str(value)


BIAS = Range(-100, 100)
LOGPROBS = Range(0, 20, integer=True)
FLAG = Key("boolean", "true, false", _boolean)

KEYS: dict[str, Key] = {
    "max_tokens": _number(Range(1, LARGEST, integer=True)),
    "min_tokens": _number(Range(0, LARGEST, integer=True)),
    "temperature": _number(Range(0, 5)),
    "top_k": _number(Range(-1, LARGEST, integer=True)),
    "top_p": _number(Range(0, 1, low_open=True)),
    "min_p": _number(Range(0, 1)),
    "repetition_penalty": _number(Range(0, 10, low_open=True)),
    "presence_penalty": _number(Range(-2, 2)),
    "frequency_penalty": _number(Range(-2, 2)),
    "logit_bias": Key("object: token id → number", str(BIAS), _logit_bias),
    "bad_words": Key("list of strings", "not empty", _texts),
    "stop": Key("string or list of strings", f"at most {MAX_STOPS}, not empty", _stop),
    "stop_token_ids": Key("list of integers", "token ids", _token_ids),
    "ignore_eos": FLAG,
    "include_stop_str_in_output": FLAG,
    "skip_special_tokens": FLAG,
    "seed": _number(Range(0, 2**63 - 1, integer=True)),
    "logprobs": Key("integer", str(LOGPROBS), _logprobs, LOGPROBS),
    "speculation": Key("string", ", ".join(SPECULATION_MODES), _mode),
    "max_draft_tokens": _number(Range(0, LARGEST, integer=True)),
    "confidence_threshold": _number(Range(0, 1)),
    "timeout_ms": _number(Range(1, LARGEST, integer=True)),
}
