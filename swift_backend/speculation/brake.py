"""Does drafting pay for this request? A brake for `auto`, by what its own rounds cost and brought."""

from __future__ import annotations

from dataclasses import dataclass

PROBE_ROUNDS = 3
FIRST_PAUSE = 16
LONGEST_PAUSE = 128
MEMORY = 0.8
MARGIN = 1.1  # a pass over a draft takes a little longer than one over a single row


@dataclass(slots=True)
class Brake:
    """Stops drafting while it costs more time than it saves, and tries again now and then.

    An accepted token saves a full pass, so drafting pays iff accepted tokens * seconds of a full pass > seconds of
    drafting (α > c in the paper's terms). In a batch both are the request's share: of its layer set's draft passes,
    and of the full pass. Sums fade by MEMORY per drafting round; after a failed trial the next one
    waits twice as long.
    """

    accepted: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    rounds: float = 0.0
    trials: int = 0
    pause: int = FIRST_PAUSE
    waiting: int = 0

    @property
    def released(self) -> bool:
        """Whether the next round may draft."""
        return self.waiting == 0

    def note_round(self, accepted: int, draft_seconds: float, verify_seconds: float, *, may_draft: bool = True) -> None:
        """Count a decode round: its accepted tokens, and the seconds of drafting and of the full pass.

        may_draft: false where somebody else forbade a draft, which says nothing about drafting.
        """
        if self.waiting:
            self.waiting -= 1
            return
        if not may_draft:
            return
        self.trials += 1
        self.accepted = MEMORY * self.accepted + accepted
        self.draft_seconds = MEMORY * self.draft_seconds + draft_seconds
        self.verify_seconds = MEMORY * self.verify_seconds + verify_seconds
        self.rounds = MEMORY * self.rounds + 1
        if self.trials < PROBE_ROUNDS:
            return
        if self.pays:
            self.pause = FIRST_PAUSE
            return
        self.waiting = self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)

    @property
    def pays(self) -> bool:
        """Whether the accepted tokens saved more time than the drafts took."""
        return self.accepted * self.verify_seconds / self.rounds > MARGIN * self.draft_seconds
