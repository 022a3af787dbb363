"""What does the full model say in this step? One pass over known and drafted tokens, and its verdicts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter

import torch

from swift_backend.batch import RowGroup
from swift_backend.failure import ends_engine
from swift_backend.runner import Runner
from swift_backend.scheduler import Work
from swift_backend.sequence import Sequence
from swift_backend.speculation.draft import Draft
from swift_backend.speculation.draw_cost import DrawCost
from swift_backend.speculation.layer_choice import LayerChooser
from swift_backend.speculation.verdict import Verdict, judge

OwnFailure = Callable[[Sequence], AbstractContextManager[None]]


class Verification:
    """Runs full passes, and applies the engine's acceptance rule to what comes of them.

    own_failure: surrounds what may fail because of one sequence; it ends that sequence. draw_cost: learns from each
    step. draw_seconds: of the latest step, what drawing took beside its pass.
    """

    def __init__(
        self, runner: Runner, layers: LayerChooser, rule: str, own_failure: OwnFailure, draw_cost: DrawCost
    ) -> None:
        self._runner = runner
        self._layers = layers
        self._rule = rule
        self._own_failure = own_failure
        self._draw_cost = draw_cost
        self.draw_seconds = 0.0

    def verify(self, plan: list[Work], drafts: list[Draft]) -> list[Verdict | None]:
        """One full pass; a verdict for each work whose next token is due. Prompts' profiles are read off on the way."""
        groups = [row_group(work, draft) for work, draft in zip(plan, drafts, strict=True)]
        rows = ((work.sequence, len(group.token_ids)) for work, group in zip(plan, groups, strict=True))
        watch = self._layers.watch(rows)
        logits = self._runner.forward(groups, observe=watch.seen.observe if watch else None)
        if watch:
            self._layers.note(watch, [work.sequence for work in plan if work.reaches_end])
        ends = [work.reaches_end for work in plan]  # now: a sequence that fails in judging loses its extent
        due = [(work.sequence, draft) for work, draft, end in zip(plan, drafts, ends, strict=True) if end]
        started = perf_counter()
        verdicts = iter(self._judge(due, logits))
        self.draw_seconds = perf_counter() - started
        self._draw_cost.note(self.draw_seconds, sum(len(draft) + 1 for one, draft in due if one.params.temperature > 0))
        return [next(verdicts) if end else None for end in ends]

    def _judge(self, due: list[tuple[Sequence, Draft]], logits: torch.Tensor) -> list[Verdict]:
        """Verdicts for all, or, where judging all at once fails, for each alone: then only its own cause fails."""
        try:
            return judge(due, logits, self._rule)
        except Exception as error:
            if ends_engine(error):
                raise
        verdicts, start = [], 0
        for sequence, draft in due:
            rows = logits[start : start + len(draft) + 1]
            start += len(draft) + 1
            verdict = Verdict(())
            with self._own_failure(sequence):
                [verdict] = judge([(sequence, draft)], rows, self._rule)
            verdicts.append(verdict)
        return verdicts


def row_group(work: Work, draft: Draft) -> RowGroup:
    """A sequence's rows in the full pass: known tokens, then drafted ones; logits from the last known row on."""
    sequence = work.sequence
    assert sequence.extent is not None
    known = sequence.tokens[sequence.kv_len : sequence.kv_len + work.num_tokens]
    num_logits = len(draft) + 1 if work.reaches_end else 0
    parents = None
    if draft.parents != tuple(range(-1, len(draft) - 1)):
        last = len(known) - 1  # the row that the draft's −1 is
        parents = [*range(-1, last), *(parent + 1 + last for parent in draft.parents)]
    return RowGroup([*known, *draft.token_ids], sequence.kv_len, sequence.extent.start, num_logits, parents)
