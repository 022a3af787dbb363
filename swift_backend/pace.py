"""How much may go into one step, so that nobody waits long and no draft costs throughput?"""

from __future__ import annotations

from collections.abc import Iterable

from swift_backend.pass_times import PassTimes
from swift_backend.scheduler import Work
from swift_backend.sequence import Sequence
from swift_backend.speculation.batch_limit import BatchLimit

# A step with a chunk of a prompt may take so many times what the decoding sequences alone would take …
STALL = 2.5
# … and so many seconds where nobody decodes, since a step is what a cancelled or a new request waits for.
LONGEST_STEP = 0.5


class MeasuredPace:
    """scheduler.Pace by the measured costs of passes."""

    def __init__(self, times: PassTimes, batch_limit: BatchLimit | None) -> None:
        """batch_limit: None lets every draft be as long as it may."""
        self._times = times
        self._batch_limit = batch_limit

    def draft_limit(self, num_decoding: int, num_drafting: int, most: int) -> int:
        """See scheduler.Pace."""
        return most if self._batch_limit is None else self._batch_limit.longest(num_decoding, num_drafting, most)

    def chunk(self, decoding: list[Sequence], chunks: list[Work], first: int) -> int:
        """See scheduler.Pace."""
        rows, keys = len(decoding), sum(len(sequence.tokens) for sequence in decoding)
        seconds = STALL * self._times.seconds(rows, keys) if decoding else LONGEST_STEP
        for work in chunks:
            rows += work.num_tokens
            keys += _keys(work)
        return self._times.rows_within(seconds, rows, keys, first)

    def note_step(self, plan: Iterable[Work], drafted: int, seconds: float) -> None:
        """Learn from a step's full pass."""
        plan = list(plan)
        rows = drafted + sum(work.num_tokens for work in plan)
        self._times.note(rows, sum(map(_keys, plan)), seconds)


def _keys(work: Work) -> int:
    return work.num_tokens * work.sequence.kv_len + work.num_tokens * (work.num_tokens + 1) // 2
