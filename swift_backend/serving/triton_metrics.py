"""How do the engine's figures get into Triton's /metrics? Through its custom metrics."""

from __future__ import annotations

import math
from typing import Any

import triton_python_backend_utils as pb_utils

from swift_backend.metric_families import FAMILIES, Family
from swift_backend.metrics import Key, StepReport, gauges, increments, observations

_LABELS = {family.name: family.label for family in FAMILIES}


class TritonMetrics:
    """All families of the contract. Each change is a round trip to the server's process, and used by one thread.

    The instances of a model are processes that share Triton's metrics, so gauges are moved by differences: their sum
    is shown. Where Triton has no metrics (--allow-metrics=false), or no histograms (before 24.08), those are absent.
    """

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}  # Triton forgets a family that nobody refers to
        self._metrics: dict[Key, Any] = {}
        self._shown: dict[Key, float] = {}
        try:
            for family in FAMILIES:
                self._add(family)
        except pb_utils.TritonModelException as error:
            self._families, self._metrics = {}, {}
            pb_utils.Logger.log_warn(f"no metrics of ours: {error}")

    def step_done(self, report: StepReport) -> None:
        """Publish what a step changed."""
        for key, value in increments(report).items():
            if 0 < value < math.inf:  # Triton 2.51 aborts, with the whole server, on a negative number and on NaN
                self._increment(key, value)
        for key, value in gauges(report).items():
            change = value - self._shown.get(key, 0.0)
            if change:
                self._increment(key, change)
                self._shown[key] = value
        for name, value in observations(report):
            if (name, "") in self._metrics:
                self._metrics[name, ""].observe(value)

    def request_refused(self, outcome: str) -> None:
        """Count a request that never reached the engine."""
        self._increment(("swift_requests_total", outcome), 1)

    def close(self) -> None:
        """Take back what the gauges show of this instance: Triton keeps them after the model is unloaded."""
        for key, value in self._shown.items():
            if value:
                self._increment(key, -value)
        self._shown.clear()

    def _increment(self, key: Key, value: float) -> None:
        name, label = key
        if key not in self._metrics and name in self._families:  # a drafter that nobody thought of
            self._metrics[key] = self._families[name].Metric(labels={_LABELS[name]: label})
        if key in self._metrics:
            self._metrics[key].increment(value)

    def _add(self, family: Family) -> None:
        kinds = pb_utils.MetricFamily
        kind = getattr(kinds, family.kind.upper(), None)
        if kind is None:
            return
        made = kinds(name=family.name, description=family.help, kind=kind)
        self._families[family.name] = made
        buckets = {"buckets": list(family.buckets)} if family.buckets else {}
        for value in family.values or ("",):
            labels = {family.label: value} if family.label else {}
            self._metrics[family.name, value] = made.Metric(labels=labels, **buckets)
