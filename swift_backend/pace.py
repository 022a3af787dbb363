"""How much may go into one step, so that nobody waits long and no draft costs throughput?"""

from __future__ import annotations

from collections.abc import Iterable

from swift_backend.pass_times import PassTimes
from swift_backend.scheduler import Work
from swift_backend.sequence import Sequence
from swift_backend.speculation.batch_limit import BatchLimit
from swift_backend.speculation.cost_model import CostModel

# A step with a chunk of a prompt may take so many times what the decoding sequences alone would take, more of it where
# more prompts wait than sequences decode …
STALL, LONGEST_STALL = 2.5, 4.0
# … and so many seconds where nobody decodes, since a step is what a cancelled or a new request waits for.
LONGEST_STEP = 0.5


class MeasuredPace:
    """scheduler.Pace by the measured costs of passes."""

    def __init__(self, times: PassTimes, batch_limit: BatchLimit | None, costs: CostModel) -> None:
        """batch_limit: None lets every draft be as long as it may. costs: learn from the same steps."""
        self._times = times
        self._batch_limit = batch_limit
        self._costs = costs

    def draft_limit(self, decoding: list[Sequence], chunks: list[Work], num_drafting: int, most: int) -> int:
        """See scheduler.Pace. A prompt's tokens are worth what drafts must beat, like those that others decode."""
        if self._batch_limit is None:
            return most
        tokens = len(decoding) + sum(work.num_tokens for work in chunks)
        return self._batch_limit.longest(tokens, num_drafting, most, mean_context(decoding))

    def chunk(self, decoding: list[Sequence], chunks: list[Work], prompts: list[Sequence]) -> int:
        """See scheduler.Pace."""
        rows, keys = len(decoding), round(len(decoding) * mean_context(decoding))
        seconds = self._longest_step(rows, keys, len(chunks) + len(prompts))
        for work in chunks:
            rows += work.num_tokens
            keys += _keys(work)
        return self._times.rows_within(seconds, rows, keys, prompts[0].kv_len)

    def _longest_step(self, rows: int, keys: int, prompts: int) -> float:
        """Seconds of a step with so many prompts beside the rows that decode."""
        if not rows:
            return LONGEST_STEP
        stall = min(LONGEST_STALL, STALL * max(1.0, prompts / rows))
        return min(stall * self._times.seconds(rows, keys), max(LONGEST_STEP, STALL * self._times.seconds(rows, keys)))

    def note_step(self, plan: Iterable[Work], drafted: int, seconds: float) -> None:
        """Learn from a step's full pass."""
        plan = list(plan)
        rows, keys = drafted + sum(work.num_tokens for work in plan), sum(map(_keys, plan))
        self._times.note(rows, keys, seconds)
        self._costs.note(seconds, rows, keys / rows, logit_rows=drafted + sum(work.reaches_end for work in plan))


def mean_context(sequences: list[Sequence]) -> float:
    """How many keys one row of these sequences looks at; 0 where there is none."""
    return sum(len(sequence.tokens) for sequence in sequences) / max(len(sequences), 1)


def _keys(work: Work) -> int:
    return work.num_tokens * work.sequence.kv_len + work.num_tokens * (work.num_tokens + 1) // 2
