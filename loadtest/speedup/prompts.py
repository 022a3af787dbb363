"""Which prompts are measured, in which order, and what are their kinds called?"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swift_backend import SwiftLLM
from swift_backend.text import dataset

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
# The guide's rows, by the categories of Spec-Bench (Xia et al., 2024), of the other files, and of our sample's.
GUIDE_ROWS = {
    "humaneval": "HumanEval",
    "gsm8k": "GSM8K",
    "math_reasoning": "GSM8K",
    "summarization": "CNN/DM",
    "translation": "WMT",
    "code": "HumanEval",
    "maths": "GSM8K",
    "summaries": "CNN/DM",
    "chat": "MT-Bench",
    **dict.fromkeys(MT_BENCH, "MT-Bench"),
}
# What the segments of a stream are called, beside the categories themselves.
SEGMENTS: Mapping[str, tuple[str, ...]] = {
    "code": ("humaneval", "coding"),
    "chat": MT_BENCH,
    "translation": ("translation",),
    "summaries": ("summarization",),
    "maths": ("gsm8k", "math_reasoning", "math"),
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, as token ids, and where it comes from; segment: its part of a stream."""

    category: str
    token_ids: list[int]
    segment: str = ""


def read_prompts(
    llm: SwiftLLM, files: Iterable[Path], per_category: int, prompt_format: str | None, longest: int
) -> list[Prompt]:
    """The first turns of each category's first prompts of at most so many tokens."""
    chat = None if prompt_format is None else prompt_format == "chat"
    found: list[Prompt] = []
    for category, rows in dataset.by_category(row for file in files for row in dataset.read_rows(file)).items():
        ids = (dataset.encode_prompt(llm.engine.tokenizer, row.prompt, chat=chat) for row in rows)
        short = (one for one in ids if len(one) <= longest)
        found += [Prompt(category, one) for one in itertools.islice(short, per_category)]
    return found


def alternating(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The first one of each category, then the second ones, and so on: a stream that changes its topic all the time."""
    turn: Counter[str] = Counter()
    turns: list[int] = []
    for prompt in prompts:
        turns.append(turn[prompt.category])
        turn[prompt.category] += 1
    return [prompt for _, prompt in sorted(zip(turns, prompts, strict=True), key=lambda one: one[0])]


def in_segments(prompts: Sequence[Prompt], names: Sequence[str], length: int) -> list[Prompt]:
    """Segments of `length` prompts, one after the other; the same name again goes on where it was.

    ValueError, naming it, for a segment that the prompts do not fill.
    """
    kinds = {name: (name, *SEGMENTS.get(name, ())) for name in names}
    left = {name: alternating([one for one in prompts if one.category in kinds[name]]) for name in names}
    found: list[Prompt] = []
    for name in names:
        some, left[name] = left[name][:length], left[name][length:]
        if len(some) < length:
            known = ", ".join(dict.fromkeys([*SEGMENTS, *(prompt.category for prompt in prompts)]))
            raise ValueError(f"--stream {name}: {length} more prompts are wanted, {len(some)} are left; known: {known}")
        found += [Prompt(one.category, one.token_ids, name) for one in some]
    return found


def batches(prompts: Sequence[Prompt], size: int) -> list[list[Prompt]]:
    """In order, of one category and segment each."""
    found: list[list[Prompt]] = []
    for prompt in prompts:
        last = found[-1][0] if found else None
        if last is None or len(found[-1]) == size or (last.category, last.segment) != (prompt.category, prompt.segment):
            found.append([])
        found[-1].append(prompt)
    return found
