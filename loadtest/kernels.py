"""How much does our own kernel bring on this machine? `python -m loadtest.kernels --model M`

Times full passes by number of rows with it and with what the engine would use without it; in turn, so that both see the
same machine.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter
from unittest.mock import patch

from rich.console import Console
from rich.progress import track
from rich.table import Table

from swift_backend.batch import RowGroup
from swift_backend.config import EngineConfig
from swift_backend.loading import load_model
from swift_backend.runner import Runner

ROWS = (1, 2, 3, 4, 6, 7, 8, 12, 16, 64, 256)
# Passes of so many rows or more are a prompt's: logits of one row, and fewer repetitions.
PROMPT = 32
CONTEXT = 100


def loaded(model: str | None) -> Runner:
    """A runner of the model in bfloat16, with a small cache."""
    return load_model(EngineConfig(model=model, dtype="bfloat16", kv_cache_tokens=CONTEXT + max(ROWS))).runner


def seconds(runner: Runner, rows: int) -> float:
    """Of one pass."""
    group = RowGroup([5] * rows, CONTEXT, 0, 1 if rows >= PROMPT else rows)
    started = perf_counter()
    runner.forward([group]).argmax(-1).tolist()
    return perf_counter() - started


def in_turn(runners: list[Runner], rows: int, repetitions: int) -> list[list[float]]:
    """Seconds of passes of each runner; who begins changes."""
    times: list[list[float]] = [[] for _ in runners]
    for turn in range(repetitions):
        for i in sorted(range(len(runners)), key=lambda i: (i + turn) % len(runners)):
            times[i].append(seconds(runners[i], rows))
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory, hub id or .gguf file; the default model if left out")
    parser.add_argument("--repetitions", type=int, default=12)
    arguments = parser.parse_args()
    chosen = loaded(arguments.model)
    with patch("swift_backend.model.linear.kernel", lambda: None):
        other = loaded(arguments.model)
    names = [runner.decoder.kernel for runner in (chosen, other)]
    if names[0] == names[1]:
        parser.error(f"the engine uses {names[0]} here: our own kernel is for AVX2 without AVX-512, or was not built")
    table = Table("rows", *(f"{name}, ms (over 1 row)" for name in names), "ratio", title=f"full passes: {names[0]}")
    in_turn([chosen, other], 1, 3)  # warm-up
    alone: list[float] = []
    for rows in track(ROWS, console=Console(stderr=True)):
        repetitions = arguments.repetitions if rows < PROMPT else max(1, arguments.repetitions // 3)
        ours, theirs = map(median, in_turn([chosen, other], rows, repetitions))
        alone = alone or [ours, theirs]
        cells = (f"{1e3 * took:.1f} ({took / one:.2f})" for took, one in zip((ours, theirs), alone, strict=True))
        table.add_row(str(rows), *cells, f"{ours / theirs:.2f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
