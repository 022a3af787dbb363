"""What came of a soak? What each client saw against its solo answer, and all of it against the metrics."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from loadtest.answers import Answer
from loadtest.figures import Memory, Sample, total
from swift_backend.metric_families import OUTCOMES

MOST_DRAFTED = 15  # in a round: the server's default of max_draft_tokens


@dataclass(frozen=True, slots=True)
class Result:
    """What a client did to its request (run, stopped, left, late or wrong), what it saw, and what it asked with."""

    kind: str
    answer: Answer
    expected: list[int]
    prompt_tokens: int = 0

    @property
    def trouble(self) -> str:
        """What is wrong with it, "" if nothing."""
        answer, kind = self.answer, self.kind
        if answer.token_ids != self.expected[: len(answer.token_ids)]:
            return "another answer than alone"
        if kind == "left":
            return ""
        if kind == "wrong":
            return "" if answer.error and not answer.chunks else "a wrong request was answered"
        allowed = {"stop", "length"} | {"stopped": {"cancelled"}, "late": {"timeout"}}.get(kind, set())
        if answer.error or answer.finish_reason not in allowed:
            return f"ended with {answer.finish_reason!r} {answer.error}"
        if answer.finish_reason in ("stop", "length") and answer.token_ids != self.expected:
            return "an answer that is too short"
        return "" if [chunk.final for chunk in answer.chunks].count(True) == 1 else "not exactly one final response"


@dataclass(slots=True)
class Soak:
    """What came of it all."""

    results: list[Result]
    added: dict[Sample, float]
    memory: list[Memory] = field(default_factory=list)

    @property
    def memory_columns(self) -> dict[str, list[int]]:
        """Bytes of resident and of shared memory, over time."""
        return {
            "resident": [one.resident for one in self.memory],
            "shared memory": [one.shared for one in self.memory],
        }

    @property
    def troubles(self) -> Counter[str]:
        """What went wrong, and how often."""
        return Counter(result.trouble for result in self.results if result.trouble)

    @property
    def mismatches(self) -> list[str]:
        """Where the metrics do not add up to what the clients saw; those who left early saw less."""
        seen = [result for result in self.results if result.kind not in ("left", "wrong")]
        left = [result for result in self.results if result.kind == "left"]
        outcomes = Counter(result.answer.finish_reason for result in seen)
        outcomes["invalid"] = sum(result.kind == "wrong" for result in self.results)
        counted = {name: total(self.added, "swift_requests_total", outcome=name) for name in OUTCOMES}
        problems = [
            f"{name}: {counted[name]:g} counted, {outcomes[name]} seen"
            for name in OUTCOMES
            if not outcomes[name] <= counted[name] <= outcomes[name] + len(left)
        ]
        if sum(counted.values()) != len(self.results):
            problems.append(f"{sum(counted.values()):g} requests counted, {len(self.results)} sent")
        for name, each, most in (
            ("swift_generated_tokens_total", lambda one: len(one.answer.token_ids), lambda one: len(one.expected)),
            ("swift_prompt_tokens_total", prompt_tokens, lambda one: one.prompt_tokens),
            ("swift_draft_tokens_total", _last("total_draft_tokens"), lambda one: MOST_DRAFTED * len(one.expected)),
            (
                "swift_accepted_draft_tokens_total",
                _last("total_accepted_draft_tokens"),
                lambda one: len(one.expected),
            ),
        ):
            low, high = sum(map(each, [*seen, *left])), sum(map(each, seen)) + sum(map(most, left))
            if not low <= total(self.added, name) <= high:
                problems.append(f"{name}: {total(self.added, name):g} counted, {low} to {high} seen")
        return problems


def growth(values: list[int]) -> tuple[float, float]:
    """How much larger the second half is than the first, as a share: (by medians, by steady growth).

    Allocators take memory in jumps, and a leak shows between any two samples: the steady growth is the median
    difference of consecutive samples, times their number.
    """
    half = len(values) // 2
    steady = median(later - earlier for earlier, later in itertools.pairwise(values)) * half
    return median(values[half:]) / median(values[:half]) - 1, steady / values[0]


def prompt_tokens(result: Result) -> int:
    """They count once there is a first token."""
    chunks = result.answer.chunks
    return int(chunks[0].outputs["num_input_tokens"]) if result.answer.token_ids else 0


def _last(name: str) -> Callable[[Result], int]:
    return lambda result: int(result.answer.chunks[-1].outputs[name]) if result.answer.chunks else 0
