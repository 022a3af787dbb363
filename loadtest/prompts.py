"""Which prompts is a server tried with? Rows of Spec-Bench's format, the first turn of each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path


def read_prompts(files: Iterable[Path], count: int, max_characters: int = 600) -> list[str]:
    """`count` first turns of at most so many characters, taken in turn from each category of the files.

    Raises ValueError where there are not as many.
    """
    columns: dict[str, list[str]] = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if len(row["turns"][0]) <= max_characters:
                columns.setdefault(f"{file.name} {row['category']}", []).append(row["turns"][0])
    longest = max(map(len, columns.values()), default=0)
    prompts = [column[i] for i in range(longest) for column in columns.values() if i < len(column)]
    if len(prompts) < count:
        raise ValueError(f"{count} prompts are wanted, and the files hold {len(prompts)}")
    return prompts[:count]


def as_messages(prompt: str) -> str:
    """The prompt as the `messages` of one user."""
    return json.dumps([{"role": "user", "content": prompt}])
