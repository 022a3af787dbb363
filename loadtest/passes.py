"""What does one pass cost, by number of rows and with layers skipped?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import torch
from rich.progress import track

from swift_backend import SwiftLLM
from swift_backend.batch import RowGroup
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.similarity import skip_ratio

CONTEXT = 200


class PassTimer:
    """Times passes of one sequence at a context of 200 tokens."""

    def __init__(self, llm: SwiftLLM) -> None:
        self._runner = llm.engine.runner
        extent = self._runner.cache.reserve(CONTEXT + 16)
        assert extent is not None
        self._start = extent.start
        self._runner.forward([RowGroup([5] * CONTEXT, 0, self._start, 1)])
        self._runner.cache.release(extent)
        shape = self._runner.decoder.config
        layers = shape.num_layers
        skipped = round(skip_ratio(layers) * layers)
        self.draft_set = LayerSet.skipping(layers, range(2, 2 + skipped), parallel=shape.parallel)

    def time_pass(self, rows: int, layer_set: LayerSet | None = None) -> float:
        """Seconds of one pass of `rows` tokens with logits for each."""
        group = RowGroup([7] * rows, CONTEXT, self._start, rows)
        started = perf_counter()
        self._runner.forward([group], None if layer_set is None else layer_set.kept).argmax(-1).tolist()
        return perf_counter() - started

    def measure(self, rows: Sequence[int], rounds: int) -> dict[str, float]:
        """Medians in ms, and medians of the ratios within each round; c is the draft pass over the full one."""
        for count in rows:
            self.time_pass(count)
        samples: list[dict[str, float]] = []
        for _ in track(range(rounds), "passes"):
            sample = {f"rows_{count}": self.time_pass(count) for count in rows}
            samples.append({**sample, "draft": self.time_pass(1, self.draft_set)})
        medians = {f"{name}_ms": 1e3 * median(s[name] for s in samples) for name in samples[0]}
        ratios = {f"{name}_over_one": median(s[name] / s["rows_1"] for s in samples) for name in samples[0]}
        return {**medians, **ratios}


def profile_pass(llm: SwiftLLM, passes: int = 20) -> str:
    """Where a one-row pass spends its time, by operator."""
    timer = PassTimer(llm)
    timer.time_pass(1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(passes):
            timer.time_pass(1)
    return profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=14, max_name_column_width=44)
