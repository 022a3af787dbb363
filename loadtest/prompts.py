"""Which prompts is a server tried with? Rows of Spec-Bench's format, the first turn of each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from swift_backend.text import dataset


def read_prompts(files: Iterable[Path], count: int, max_characters: int = 600) -> list[str]:
    """`count` first turns of at most so many characters, taken in turn from each category of the files.

    Raises ValueError where there are not as many.
    """
    columns: list[list[str]] = []
    for file in files:
        short = (row for row in dataset.read_rows(file) if len(row.prompt) <= max_characters)
        columns += [[row.prompt for row in rows] for rows in dataset.by_category(short).values()]
    longest = max(map(len, columns), default=0)
    prompts = [column[i] for i in range(longest) for column in columns if i < len(column)]
    if len(prompts) < count:
        raise ValueError(f"{count} prompts are wanted, and the files hold {len(prompts)}")
    return prompts[:count]


def as_messages(prompt: str) -> str:
    """The prompt as the `messages` of one user."""
    return json.dumps([{"role": "user", "content": prompt}])
