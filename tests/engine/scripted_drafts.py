"""Drafters whose proposals a test decides, in place of the engine's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path

from swift_backend import SwiftLLM
from swift_backend.scheduler import Work
from swift_backend.sequence import Sequence
from swift_backend.speculation.draft import Draft

Script = Callable[[Sequence], Seq[int]]


class ScriptedDrafter:
    """Drafts what the script says about each sequence, as far as its budget goes, and keeps a list of it.

    made: (prompt, drafted tokens) for every sequence that could draft, in order.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.made: list[tuple[list[int], tuple[int, ...]]] = []

    def draft(self, plan: Seq[Work]) -> list[Draft]:
        drafts = []
        for work in plan:
            sequence, budget = work.sequence, work.draft_budget
            tokens = tuple(self._script(sequence))[:budget] if budget else ()
            if budget:
                self.made.append((sequence.request.prompt_ids, tokens))
            drafts.append(Draft(tokens))
        return drafts

    @property
    def lengths(self) -> list[int]:
        return [len(tokens) for _, tokens in self.made]


def answering(answer: Seq[int], wrong_at: int | None = None) -> Script:
    """Drafts the answer itself; with wrong_at, the token at that place of every draft (from 1) is another one."""

    def script(sequence: Sequence) -> list[int]:
        tokens = list(answer[sequence.num_output_tokens :])
        if wrong_at is not None and len(tokens) >= wrong_at:
            tokens[wrong_at - 1] = (tokens[wrong_at - 1] + 1) % 64
        return tokens

    return script


def nothing(sequence: Sequence) -> list[int]:
    return []


def by_prompt(scripts: Mapping[tuple[int, ...], Script]) -> Script:
    """A script for each prompt."""
    return lambda sequence: scripts[tuple(sequence.request.prompt_ids)](sequence)


def load(directory: Path, **options: object) -> SwiftLLM:
    """A tiny model's engine in float32 that checks its invariants after every step, and drafts in every batch."""
    options = {
        "limit_drafts": False,
        "dtype": "float32",
        "debug": True,
        "skip_ratio": 0.4,
        "kv_cache_tokens": 8192,
        **options,
    }
    return SwiftLLM(str(directory), **options)  # type: ignore[arg-type]
