"""What does a pass cost, with any layer set, number of rows and context? Sums of measured parts, kept current."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field

from swift_backend.speculation.drift import Drift
from swift_backend.speculation.layer_set import LayerSet

# How much of an error is corrected at each pass, and the largest error (a logarithm) that is believed: other processes
# had the machine.
RATE = 0.05
MOST_SURPRISE = math.log(2)


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Seconds by number of rows, measured at some of them: a line between two, and the last line beyond.

    More rows than were measured never cost less than the most that were, though noise may make the last line fall.

    rows: ascending, at least one; seconds: of as many rows.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, rows: float) -> float:
        """Seconds of so many rows; none cost nothing."""
        if rows <= 0:
            return 0.0
        if len(self.rows) == 1:
            return self.seconds[0] * max(1.0, rows / self.rows[0])
        right = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        low, high = self.rows[right - 1], self.rows[right]
        along = (max(rows, self.rows[0]) - low) / (high - low)
        seconds = self.seconds[right - 1] + along * (self.seconds[right] - self.seconds[right - 1])
        return seconds if rows <= self.rows[-1] else max(seconds, self.seconds[-1])


@dataclass(slots=True)
class CostModel:
    """Seconds of a pass: each attention and each MLP that it computes, the head, and what every pass takes.

    attention, mlp: of one sublayer, by rows; head: by rows with logits; rest: embedding, batch and sampling.
    per_key: seconds of an attention for each cache slot that one of its rows looks at.

    short_head: the share of the vocabulary that a draft pass scores where it may be short.

    What passes take in the meantime: scale is of the whole machine, full_drift of full passes by their rows, and
    draft_drift of those that skip something.
    """

    num_layers: int
    attention: RowCosts
    mlp: RowCosts
    head: RowCosts
    rest: RowCosts
    per_key: float
    scale: float = 1.0
    short_head: float = 1.0
    full_drift: Drift = field(init=False)
    draft_drift: Drift = field(init=False)
    _kinds: tuple[int, int] = field(init=False)  # the bits of all attentions, and of all MLPs

    def __post_init__(self) -> None:
        attentions = (4**self.num_layers - 1) // 3  # 0b…0101
        self._kinds = attentions, attentions << 1
        self.full_drift = Drift(self.mlp.rows)
        self.draft_drift = Drift((1,))

    def seconds(
        self,
        rows: float,
        context: float,
        skip_mask: int = 0,
        logit_rows: float | None = None,
        head_share: float = 1.0,
    ) -> float:
        """Of a pass of so many rows that look at `context` slots each, without the sublayers in skip_mask.

        logit_rows: for how many the head is asked; all of them by default. head_share: of the vocabulary.
        """
        skipped = [(skip_mask & kind).bit_count() for kind in self._kinds]
        attentions, mlps = (self.num_layers - count for count in skipped)
        attention = self.attention.at(rows) + self.per_key * rows * context
        head = head_share * self.head.at(rows if logit_rows is None else logit_rows)
        parts = attentions * attention + mlps * self.mlp.at(rows) + head + self.rest.at(rows)
        return self.scale * self._drift(skip_mask).at(rows) * parts

    def draft_ratio(self, layer_set: LayerSet, context: float, head_share: float = 1.0) -> float:
        """c: a draft pass of one row over a full one."""
        draft = self.seconds(1, context, layer_set.skip_mask, head_share=head_share)
        return draft / self.seconds(1, context)

    def drafting_speed(self, alpha: float, skip_mask: int, context: float, most: int, head_share: float = 1.0) -> float:
        """Tokens per second over plain decoding, with drafts of the best length in [1, most]; below 1 they lose.

        alpha: the share of drafted tokens that are accepted.
        """
        plain = self.seconds(1, context)
        verify = [self.seconds(rows, context) / plain for rows in range(1, most + 2)]
        draft = self.seconds(1, context, skip_mask, head_share=head_share)
        return speed_up(alpha, draft / plain, verify)[0]

    def sublayer_seconds(self, context: float) -> tuple[float, float]:
        """What skipping an attention, and what skipping an MLP, saves of a draft pass of one row."""
        now = self.scale * self.draft_drift.at(1)
        return now * (self.attention.at(1) + self.per_key * context), now * self.mlp.at(1)

    def sublayer_shares(self, context: float) -> tuple[float, float]:
        """The same in times of a plain token."""
        plain = self.seconds(1, context)
        attention, mlp = self.sublayer_seconds(context)
        return attention / plain, mlp / plain

    def note(
        self,
        took: float,
        rows: float,
        context: float,
        skip_mask: int = 0,
        logit_rows: float | None = None,
        head_share: float = 1.0,
    ) -> None:
        """Learn from a pass that took so many seconds; the rest as in seconds(). Mutates scale and a drift."""
        expected = self.seconds(rows, context, skip_mask, logit_rows, head_share)
        surprise = math.log(max(took, 1e-9) / expected)
        surprise = max(-MOST_SURPRISE, min(MOST_SURPRISE, surprise))
        self.scale *= math.exp(RATE * surprise)
        self._drift(skip_mask).note(rows, surprise)

    def _drift(self, skip_mask: int) -> Drift:
        return self.draft_drift if skip_mask else self.full_drift


def speed_up(alpha: float, draft_ratio: float, verify_ratios: list[float]) -> tuple[float, int]:
    """The most tokens per second, over plain decoding, that drafts bring, and their length; below 1 they lose.

    alpha: the share of drafted tokens that are accepted; draft_ratio: c; verify_ratios[k]: a pass over k drafted tokens
    and their row over a pass of one row, for k from 0 to the longest, which is at least 1. Leviathan et al., 2023: a
    round with k drafted tokens commits 1 + α + … + α^k, in c * k + verify_ratios[k] times the time of a plain token.
    """
    best, length, committed = 0.0, 0, 1.0
    for k in range(1, len(verify_ratios)):
        committed += alpha**k
        rate = committed / (draft_ratio * k + verify_ratios[k])
        if rate > best:
            best, length = rate, k
    return best, length
