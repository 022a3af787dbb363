"""What does the model propose when it skips its own layers? The guide's phase 2: draft while sure enough."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from swift_backend.params import SamplingParams
from swift_backend.scheduler import Work
from swift_backend.speculation.draft import Draft
from swift_backend.speculation.draft_passes import DraftPasses, Path, common_set

GREEDY_CONFIDENCE = 0.65
SAMPLING_CONFIDENCE = 0.80
SAMPLING_TEMPERATURE = 0.7


def confidence_threshold(params: SamplingParams) -> float:
    """ε of the guide: 0.65 at temperature 0, 0.80 from 0.7 on, a line between; the request's own value wins."""
    if params.confidence_threshold is not None:
        return params.confidence_threshold
    along = min(1.0, params.temperature / SAMPLING_TEMPERATURE)
    return GREEDY_CONFIDENCE + along * (SAMPLING_CONFIDENCE - GREEDY_CONFIDENCE)


class LayerSkipDrafter:
    """Drafts with the active layers of one layer set for all sequences of a pass, while it is sure enough.

    A token whose confidence, max softmax(logits), is below ε ends the draft and is not part of it.
    """

    def __init__(self, passes: DraftPasses) -> None:
        self._passes = passes

    def draft(self, plan: Seq[Work]) -> list[Draft]:
        """See Drafter; sequences without a layer set, or with an empty one, get an empty draft."""
        paths = [Path(work.sequence, work.draft_budget) for work in plan]
        group = [path for path in paths if path.sequence.layer_set and path.room]
        if group:
            layer_set = common_set(group)
            while active := [path for path in group if path.room and not path.unsure]:
                for path, said in zip(active, self._passes.extend(active, layer_set), strict=True):
                    path.unsure = said.confidence < confidence_threshold(path.sequence.params)
                    if not path.unsure:
                        path.append(said)
        return [path.draft() for path in paths]
