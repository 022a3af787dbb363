"""What do the passes of this step cost? Looked up often, so reckoned seldom."""

from __future__ import annotations

from swift_backend.speculation.cost_model import CostModel

# Contexts are told apart by so many tokens, and costs are looked at anew after so many steps.
CONTEXT_STEP = 256
STEPS = 64


class Prices:
    """Seconds of passes by the cost model, kept for some steps."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._steps = 0
        self._full: dict[tuple[int, int, int], list[float]] = {}
        self._draft: dict[tuple[int, int, int, int], float] = {}

    def next_step(self) -> None:
        """A step has gone by."""
        self._steps += 1
        if self._steps % STEPS == 0:
            self._full.clear()
            self._draft.clear()

    def full(self, rows: int, decoding: int, context: float, most: int) -> list[float]:
        """[k]: of a full pass over so many rows, of which `decoding` want logits, and k drafted tokens, up to most."""
        key = rows, decoding, _rounded(context)
        known = self._full.setdefault(key, [])
        for k in range(len(known), most + 1):
            known.append(self._costs.seconds(rows + k, key[2], logit_rows=decoding + k))
        return known[: most + 1]

    def draft(self, rows: int, drafts: int, context: float, skip_mask: int) -> float:
        """Of a draft pass over so many rows of so many drafts, with a short head if there is one."""
        key = rows, drafts, _rounded(context), skip_mask
        if key not in self._draft:
            self._draft[key] = self._costs.seconds(rows, key[2], skip_mask, drafts, self._costs.short_head)
        return self._draft[key]


def _rounded(context: float) -> int:
    return round(context / CONTEXT_STEP) * CONTEXT_STEP
