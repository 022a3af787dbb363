"""What happens when a crowd comes and goes? `python -m loadtest.crossing --model M --dataset F --methods off,auto`

One request runs, seven join it, end, and leave it alone again; tokens per second are reported second by second, and by
phase over those of the first method. Methods take turns, so that all of them see the same machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

from rich.console import Console
from rich.progress import track
from rich.table import Table

from swift_backend.llm import SwiftLLM
from swift_backend.params import SamplingParams
from swift_backend.sequence import Output, Request
from swift_backend.text import dataset

PHASES = ("alone", "together", "alone again")


@dataclass(slots=True)
class Crossing:
    """One run: when tokens came, in seconds since it began, and when the others came and were gone."""

    came: list[float] = field(default_factory=list)
    joined: float = 0.0
    left: float = 0.0

    def by_phase(self) -> list[float]:
        """Tokens per second alone, together, and alone again; a phase that there was not has none."""
        edges = [self.came[0], self.joined, self.left, self.came[-1]]
        return [sum(a < at <= b for at in self.came) / max(b - a, 1e-9) for a, b in pairwise(edges)]

    def by_second(self) -> list[int]:
        """Tokens of each second."""
        return [sum(int(at) == second for at in self.came) for second in range(int(self.came[-1]) + 1)]


def cross(llm: SwiftLLM, prompts: Sequence[list[int]], mode: str, tokens: int) -> Crossing:
    """Run the first prompt for 4 * tokens tokens; the others join after tokens of these, for as many each."""
    engine, run, begun = llm.engine, Crossing(), perf_counter()
    lasting = 0

    def seen(output: Output) -> None:
        nonlocal lasting
        if output.error is not None:
            raise output.error
        now = perf_counter() - begun
        run.came.extend([now] * len(output.token_ids))
        if output.request_id == "0":
            lasting += len(output.token_ids)
        elif output.finished:
            run.left = now

    def submit(number: int, count: int) -> None:
        params = SamplingParams(max_tokens=count, speculation=mode, ignore_eos=True)
        engine.submit(Request(str(number), prompts[number], params, seen))

    submit(0, 4 * tokens)
    while not engine.idle or lasting == 0:
        engine.step()
        if not run.joined and lasting >= tokens:
            run.joined = perf_counter() - begun
            for number in range(1, len(prompts)):
                submit(number, tokens)
    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", help="directory, hub id or .gguf file; the default model if left out")
    add("--dataset", type=Path, required=True, metavar="FILE.jsonl")
    add("--methods", default="off,auto")
    add("--users", type=int, default=8, help="at most at once (default: 8)")
    add("--max-tokens", type=int, default=64, help="of those that join; the first one writes four times as many")
    add("--rounds", type=int, default=3)
    add("--max-prompt-tokens", type=int, default=200)
    add("--json", type=Path, metavar="OUT.json")
    arguments = parser.parse_args()
    methods = arguments.methods.split(",")
    llm = SwiftLLM(arguments.model, "bfloat16", prefix_cache=False)
    rows = [dataset.encode_prompt(llm.engine.tokenizer, row.prompt) for row in dataset.read_rows(arguments.dataset)]
    prompts = [row for row in rows if len(row) <= arguments.max_prompt_tokens][: arguments.users]
    if len(prompts) < max(arguments.users, 2):
        parser.error(f"{len(prompts)} prompts of --dataset are short enough: --users needs as many, and two at least")
    cross(llm, prompts[:2], methods[-1], 8)  # warm-up
    runs: dict[str, list[Crossing]] = {method: [] for method in methods}
    for number in track(range(arguments.rounds), "rounds", console=Console(stderr=True)):
        for method in methods[number % len(methods) :] + methods[: number % len(methods)]:
            runs[method].append(cross(llm, prompts, method, arguments.max_tokens))
    print_report(runs)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({method: [one.by_second() for one in some] for method, some in runs.items()})
        )
    return 0


def print_report(runs: dict[str, list[Crossing]]) -> None:
    """Phases by their median, with the ratio to the first method, and the latest run of each second by second."""
    table = Table("method", *PHASES, title="tokens per second (over the first method)")
    first = [median(values) for values in zip(*(run.by_phase() for run in next(iter(runs.values()))), strict=True)]
    for method, some in runs.items():
        speeds = [median(values) for values in zip(*(run.by_phase() for run in some), strict=True)]
        cells = (f"{speed:.1f} ({speed / max(base, 1e-9):.2f})" for speed, base in zip(speeds, first, strict=True))
        table.add_row(method, *cells)
    console = Console()
    console.print(table)
    for method, some in runs.items():
        last = some[-1]
        console.print(f"{method}: others from {last.joined:.0f} to {last.left:.0f} s;", *last.by_second())


if __name__ == "__main__":
    raise SystemExit(main())
