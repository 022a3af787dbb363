"""What did one method do with one batch of prompts? Kept as it was measured, so that a run can go on later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from swift_backend import Completion

# Of the engine's statistics, those that are added up over requests.
SUMMED = (
    "rounds", "draft_tokens", "accepted_draft_tokens", "first_draft_tokens", "accepted_first_draft_tokens",
    "rounds_without_draft", "search_seconds", "draft_seconds", "verify_seconds", "decide_seconds",
)  # fmt: skip


@dataclass(slots=True)
class Record:
    """Counts are of all prompts of the batch; decode_seconds is that of the slowest.

    tokens: without those that the prompts themselves yield. answers: their token ids, to compare; not kept in files.
    identical: how many answers were those of `off`, None where `off` has none. error: why there are no figures.
    """

    batch: int
    category: str
    method: str
    prompts: int
    segment: str = ""
    tokens: int = 0
    decode_seconds: float = 0.0
    summed: dict[str, float] = field(default_factory=dict)
    drafted: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    draft_cost_ratios: list[float] = field(default_factory=list)
    layer_sets: list[str] = field(default_factory=list)
    identical: int | None = None
    error: str = ""
    answers: list[list[int]] = field(default_factory=list)

    def fill(self, outputs: Sequence[Completion]) -> None:
        """Take in what the engine answered."""
        drafted: Counter[str] = Counter()
        accepted: Counter[str] = Counter()
        for out in outputs:
            drafted.update(out.stats.drafted)
            accepted.update(out.stats.accepted)
        drafting = [out.stats for out in outputs if out.stats.layer_set]
        self.answers = [out.token_ids for out in outputs]
        self.tokens = sum(max(len(out.token_ids) - 1, 0) for out in outputs)
        self.decode_seconds = max(out.stats.decode_seconds for out in outputs)
        self.summed = {name: sum(getattr(out.stats, name) for out in outputs) for name in SUMMED}
        self.drafted, self.accepted = dict(drafted), dict(accepted)
        self.draft_cost_ratios = [stats.draft_cost_ratio for stats in drafting]
        self.layer_sets = sorted({stats.layer_set for stats in drafting})

    def compare(self, plain: Record) -> None:
        """Count the answers that are those of `off`."""
        if not self.error and not plain.error:
            self.identical = sum(ours == theirs for ours, theirs in zip(self.answers, plain.answers, strict=True))

    def kept(self) -> dict[str, Any]:
        """For the file."""
        return {name: value for name, value in asdict(self).items() if name != "answers"}
