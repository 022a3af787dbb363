"""Which prompts does a file hold? Rows of Spec-Bench's format, the first turn of each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from swift_backend.errors import InvalidRequest
from swift_backend.request_keys import is_text
from swift_backend.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt and where it comes from."""

    category: str
    prompt: str


def read_rows(file: Path) -> list[Row]:
    """The rows in order. Raises InvalidRequest, naming the line, for one of another format; OSError without a file."""
    lines = enumerate(file.read_bytes().splitlines(), start=1)
    return [_row(line, f"dataset {file}, line {number}") for number, line in lines if line.strip()]


def by_category(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each category, in the order of their first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.category, []).append(row)
    return found


def encode_prompt(tokenizer: Tokenizer, prompt: str, *, chat: bool | None = None) -> list[int]:
    """Token ids, as a user's message or raw; chat: None is "where the model has a chat template"."""
    if tokenizer.has_chat_template if chat is None else chat:
        return tokenizer.encode_chat([{"role": "user", "content": prompt}])
    return tokenizer.encode(prompt)


def _row(line: bytes, place: str) -> Row:
    try:
        content = json.loads(line)
        category, prompt = content["category"], content["turns"][0]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise InvalidRequest("dataset", f'{place}: must be {{"category": …, "turns": [prompt, …], …}}') from None
    if not all(isinstance(value, str) and is_text(value) for value in (category, prompt)):
        raise InvalidRequest("dataset", f"{place}: category and turns must be text")
    return Row(category, prompt)
