"""How many requests get no further than the tokenizer? They count where those do that the engine ends."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from swift_backend.metric_families import REQUESTS
from swift_backend.serving.triton_errors import printable


class Refusals:
    """Triton's `swift_requests_total`, of which the decoder model has the other outcomes; used by one thread.

    Models that name the same family share it. Where Triton has no metrics, or takes them no more, nothing is counted.
    """

    def __init__(self, *, enabled: bool) -> None:
        """enabled: whether there are metrics at all."""
        self._family: Any = None
        self._counters: dict[str, Any] = {}
        if not enabled:
            return
        kinds = pb_utils.MetricFamily
        try:
            self._family = kinds(name=REQUESTS.name, description=REQUESTS.help, kind=kinds.COUNTER)
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_warn(printable(f"no metrics of ours: {error}"))

    def count(self, outcome: str) -> None:
        """Count one request; outcome: see triton_errors.outcome_of."""
        if self._family is None:
            return
        try:
            if outcome not in self._counters:
                self._counters[outcome] = self._family.Metric(labels={REQUESTS.label: outcome})
            self._counters[outcome].increment(1)
        except pb_utils.TritonModelException as error:
            self._family = None
            pb_utils.Logger.log_warn(printable(f"no more metrics of ours: {error}"))
