"""Measures the engines in turn, prompt by prompt, and prints our times over theirs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from loadtest.baselines.engines import Engine, LlamaCpp, Ours, Run, Transformers
from loadtest.baselines.gguf_export import NotExported
from loadtest.load.sample import SAMPLE
from loadtest.machine import machine
from loadtest.statistics import percentile
from swift_backend import SwiftLLM
from swift_backend.text import dataset

# The prompt whose reading is timed.
LONG = 1000


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("loadtest.baselines", description=__doc__)
    parser.add_argument("--model", help="directory, hub id or .gguf file; the default model if left out")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=48, help="per answer")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3, help="of all prompts")
    parser.add_argument("--speculation", default="off,auto", help="ours, in these ways (default: off,auto)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    console = Console()
    llm = SwiftLLM(arguments.model, arguments.dtype, prefix_cache=False)
    engines = [Ours(llm, mode) for mode in arguments.speculation.split(",")]
    others, missing = other_engines(llm, arguments.dtype)
    for said in missing:
        console.print(said, style="yellow", markup=False)
    try:
        report = measured(llm, [*engines, *others], arguments.tokens, arguments.prompts, arguments.rounds, console)
    finally:
        for engine in others:
            engine.close()
    report |= {"model": llm.engine.model.directory.name, "dtype": arguments.dtype, "machine": machine()}
    console.print(table(report), str(report["machine"]))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=2), encoding="utf-8")
    return 0


def other_engines(llm: SwiftLLM, dtype: str) -> tuple[list[Engine], list[str]]:
    """Those that can run here, and a sentence for each that cannot."""
    directory, missing = llm.engine.model.directory, []
    found: list[Engine] = [Transformers(directory, dtype)]
    try:
        if dtype != "bfloat16":
            raise NotExported(f"{dtype}: its weights are written in bfloat16 only")
        found.append(LlamaCpp(directory, torch.get_num_threads(), LONG + 512))
    except (ImportError, NotExported) as error:
        missing.append(f"llama.cpp is left out: {error}")
    return found, missing


def measured(
    llm: SwiftLLM, engines: Sequence[Engine], tokens: int, prompts: int, rounds: int, console: Console | None = None
) -> dict[str, Any]:
    """Runs of every engine on the same prompts, in changing order; the first engine is the one that is compared."""
    tokenizer = llm.engine.tokenizer
    some = [dataset.encode_prompt(tokenizer, row.prompt) for row in dataset.read_rows(SAMPLE)][:prompts]
    long = ([token for ids in some for token in ids] * LONG)[:LONG]
    long = long[: min(LONG, llm.engine.context_length - tokens - 1)]
    decode: list[dict[str, Run]] = []
    prefill: list[dict[str, Run]] = []
    for engine in engines:
        engine.run(some[0], 4)
    with Progress(console=console) as progress:
        task = progress.add_task("prompts", total=rounds * (len(some) + 1))
        for number in range(rounds):
            turn = number % len(engines)
            order = [*engines[turn:], *engines[:turn]]
            for prompt in some:
                decode.append({engine.name: engine.run(prompt, tokens) for engine in order})
                progress.advance(task)
            prefill.append({engine.name: engine.run(long, 2) for engine in order})
            progress.advance(task)
    names = [engine.name for engine in engines]
    return {
        "ms_per_token": {name: 1e3 * percentile([one[name].per_token for one in decode], 0.5) for name in names},
        "prefill_seconds": {name: percentile([one[name].prefill for one in prefill], 0.5) for name in names},
        "prefill_tokens": len(long),
        "ratios": {name: ratios(decode, prefill, names[0], name) for name in names[1:]},
        "same_answers": {name: same(decode, names[0], name) for name in names[1:]},
        "answers": len(decode),
    }


def ratios(
    decode: Sequence[dict[str, Run]], prefill: Sequence[dict[str, Run]], ours: str, theirs: str
) -> dict[str, float]:
    """Our times over theirs, prompt by prompt: the median, and its spread."""
    per_token = [one[ours].per_token / one[theirs].per_token for one in decode]
    reading = [one[ours].prefill / one[theirs].prefill for one in prefill]
    return {
        "per_token": percentile(per_token, 0.5),
        "per_token_p10": percentile(per_token, 0.1),
        "per_token_p90": percentile(per_token, 0.9),
        "prefill": percentile(reading, 0.5),
        "prefill_p10": percentile(reading, 0.1),
        "prefill_p90": percentile(reading, 0.9),
    }


def same(decode: Sequence[dict[str, Run]], ours: str, theirs: str) -> int:
    """Answers with the same tokens: engines round in their own ways, but one that reads other weights has none."""
    return sum(one[ours].token_ids == one[theirs].token_ids for one in decode)


def table(report: dict[str, Any]) -> Table:
    """One line for each engine."""
    heads = ("engine", "ms per token", "ours over it (p10–p90)", "prefill, s", "ours over it (p10–p90)", "same answers")
    made = Table(*heads, title=f"{report['model']}, {report['dtype']}, batch 1, greedy")
    for name, value in report["ms_per_token"].items():
        ratio = report["ratios"].get(name)
        shown = ["", ""]
        if ratio:
            shown = [
                f"{ratio[key]:.2f} ({ratio[f'{key}_p10']:.2f}–{ratio[f'{key}_p90']:.2f})"
                for key in ("per_token", "prefill")
            ]
        answers = f"{report['same_answers'][name]} of {report['answers']}" if ratio else ""
        made.add_row(name, f"{value:.1f}", shown[0], f"{report['prefill_seconds'][name]:.2f}", shown[1], answers)
    return made


if __name__ == "__main__":
    raise SystemExit(main())
