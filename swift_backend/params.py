"""What may a request ask for? Parsed once at the border; a SamplingParams that exists is valid."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from swift_backend.errors import InvalidRequest

SPECULATION_MODES = ("auto", "fixed", "off")


@dataclass(frozen=True, slots=True)
class Range:
    """One row of the table of ranges: the interval a number must lie in."""

    low: float
    high: float
    integer: bool = False
    low_open: bool = False

    def __str__(self) -> str:
        return f"in {'(' if self.low_open else '['}{self.low}, {self.high}]"

    def holds(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        return above and value <= self.high


# Where the contract sets no upper end: what fits the request parameters of every client.
LARGEST = 2**31 - 1

RANGES: dict[str, Range] = {
    "max_tokens": Range(1, LARGEST, integer=True),
    "temperature": Range(0, 5),
    "top_k": Range(-1, LARGEST, integer=True),
    "top_p": Range(0, 1, low_open=True),
    "min_p": Range(0, 1),
    "seed": Range(0, 2**63 - 1, integer=True),
    "max_draft_tokens": Range(0, LARGEST, integer=True),
    "confidence_threshold": Range(0, 1),
    "timeout_ms": Range(1, LARGEST, integer=True),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled; names and defaults are the contract's.

    Raises InvalidRequest, naming the field, when a value is out of its range in RANGES.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None
    speculation: str = "auto"
    max_draft_tokens: int | None = None
    confidence_threshold: float | None = None
    timeout_ms: int | None = None

    def __post_init__(self) -> None:
        for name in PARSERS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, PARSERS[name](name, value))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Check a request's keys and values; InvalidRequest names the first that is wrong."""
        for name in values:
            if name not in PARSERS:
                raise InvalidRequest(name, f"{name} is not a sampling parameter{_nearest(name)}")
        return cls(**{name: value for name, value in values.items() if value is not None})


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name, PARSERS, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _number(name: str, value: Any) -> int | float:
    limits = RANGES[name]
    number = _as_number(name, value, limits.integer)
    if not limits.holds(number):
        raise InvalidRequest(name, f"{name} must be {limits}, got {_shown(value)}")
    return number


def _as_number(name: str, value: Any, integer: bool) -> int | float:
    """Numbers as themselves; strings that spell one are accepted, as Triton's vLLM backend does."""
    wanted = "an integer" if integer else "a number"
    if isinstance(value, bool):
        raise InvalidRequest(name, f"{name} must be {wanted}, got {_shown(value)}")
    try:
        number = _as_integer(value) if integer else float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(name, f"{name} must be {wanted}, got {_shown(value)}") from None
    if not integer and not math.isfinite(number):
        raise InvalidRequest(name, f"{name} must be finite, got {_shown(value)}")
    return number if integer else float(number)


def _shown(value: Any) -> str:
    """A value as it stands in a message; a huge one is cut."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxlong = shortener.maxother = 80
    return shortener.repr(value)


def _as_integer(value: Any) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(value)
    return int(value)


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise InvalidRequest(name, f"{name} must be true or false, got {_shown(value)}")
    return value


def _stop(name: str, value: Any) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(s, str) and s for s in items):
        raise InvalidRequest(name, f"{name} must be a non-empty string or a list of them, got {_shown(value)}")
    if len(items) > 16:
        raise InvalidRequest(name, f"{name} takes at most 16 strings, got {len(items)}")
    return tuple(items)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not all(type(t) is int and t >= 0 for t in value):
        raise InvalidRequest(name, f"{name} must be a list of token ids >= 0, got {_shown(value)}")
    return tuple(value)


def _mode(name: str, value: Any) -> str:
    if value not in SPECULATION_MODES:
        raise InvalidRequest(name, f"{name} must be one of {', '.join(SPECULATION_MODES)}, got {_shown(value)}")
    return str(value)


PARSERS: dict[str, Callable[[str, Any], Any]] = {
    **{name: _number for name in RANGES},
    "stop": _stop,
    "stop_token_ids": _token_ids,
    "ignore_eos": _boolean,
    "include_stop_str_in_output": _boolean,
    "skip_special_tokens": _boolean,
    "speculation": _mode,
}

assert set(PARSERS) == {f.name for f in fields(SamplingParams)}
