"""What came next when the text was like this before? Found in the request's own prompt and output, at no cost.

This is the fixed rule, for engines whose tokens depend on what is drafted (acceptance by rejection): it looks at no
clock. Elsewhere the policy decides how much of a match is drafted.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from time import perf_counter

from swift_backend.scheduler import Work
from swift_backend.speculation.draft import NGRAM, Draft
from swift_backend.speculation.suffix_automaton import SuffixAutomaton

# A single token that occurred before says little.
LEAST_MATCH = 2


class NgramDrafter:
    """Drafts what followed the latest occurrence of the longest suffix that occurred before."""

    def draft(self, plan: Seq[Work]) -> list[Draft]:
        """See Drafter."""
        return [self._draft(work) for work in plan]

    def _draft(self, work: Work) -> Draft:
        if not work.draft_budget:
            return Draft()
        started = perf_counter()
        sequence = work.sequence
        if sequence.text_index is None:
            sequence.text_index = SuffixAutomaton()
        index: SuffixAutomaton = sequence.text_index
        index.extend(sequence.tokens[len(index) :])
        length, _ = index.match()
        found = index.continuation(work.draft_budget) if length >= LEAST_MATCH else []
        return Draft(tuple(found), drafters=(NGRAM,) * len(found), seconds=perf_counter() - started)
