"""Who drafts for whom? Each way of speculating has its drafter; those of one step share nothing but the step."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from swift_backend.scheduler import Work
from swift_backend.speculation.draft import Draft, Drafter


class Drafters:
    """The policy for sequences that have a state of drafting, a drafter with a fixed rule for the others."""

    def __init__(self, policy: Drafter, layer_skip: Drafter, ngram: Drafter) -> None:
        self._policy, self._layer_skip, self._ngram = policy, layer_skip, ngram

    def draft(self, plan: Seq[Work]) -> list[Draft]:
        """See Drafter."""
        drafts = self._policy.draft(plan)  # of all of them: what it may add depends on what the step has already
        for drafter, ours in ((self._layer_skip, False), (self._ngram, True)):
            owners = [
                i
                for i, work in enumerate(plan)
                if work.sequence.drafting is None and (work.sequence.params.speculation == "ngram") is ours
            ]
            for i, draft in zip(owners, drafter.draft([plan[i] for i in owners]), strict=True):
                drafts[i] = draft
        return drafts
