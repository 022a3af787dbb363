"""Who drafts for whom? Each way of speculating has its drafter; those of one step share nothing but the step."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from swift_backend.scheduler import Work
from swift_backend.speculation.draft import Draft, Drafter


class Drafters:
    """The policy for sequences that have a state of drafting, a drafter with a fixed rule for the others."""

    def __init__(self, policy: Drafter, layer_skip: Drafter, others: Mapping[str, Drafter]) -> None:
        """others: of those that skip no layers, by their way of speculating."""
        self._policy, self._layer_skip, self._others = policy, layer_skip, others

    def draft(self, plan: Seq[Work]) -> list[Draft]:
        """See Drafter."""
        drafts = self._policy.draft(plan)  # of all of them: what it may add depends on what the step has already
        by_rule: dict[str, list[int]] = {}
        for i, work in enumerate(plan):
            if work.sequence.drafting is None:
                mode = work.sequence.params.speculation
                by_rule.setdefault(mode if mode in self._others else "", []).append(i)
        for mode, owners in by_rule.items():
            drafter = self._others.get(mode, self._layer_skip)
            for i, draft in zip(owners, drafter.draft([plan[i] for i in owners]), strict=True):
                drafts[i] = draft
        return drafts
