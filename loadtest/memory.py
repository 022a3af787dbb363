"""Does speculation take memory? `python -m loadtest.memory --model M --methods off,auto`

Each method has a process of its own, one after the other: weights, KV cache, and what the peak holds beyond the loaded
model, for the same prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

from swift_backend import SamplingParams, SwiftLLM

MIB = 2**20
# Prompt tokens of each request; they are of any text, memory does not care which.
PROMPT_TOKENS = 200
CACHE_TOKENS = 8192


def measured(
    model: str | None, dtype: str, methods: Sequence[str], tokens: int, batch: int, layer_sets: Path | None = None
) -> list[dict[str, Any]]:
    """The figures of each method; subprocess.CalledProcessError where a process fails."""
    options = ["--dtype", dtype, "--max-tokens", str(tokens), "--batch", str(batch)]
    options += ["--model", model] if model else []
    options += ["--layer-sets", str(layer_sets)] if layer_sets else []
    command = [sys.executable, "-m", "loadtest.memory", *options, "--one"]
    found = [
        subprocess.run([*command, "--methods", method], stdout=subprocess.PIPE, text=True, check=True)
        for method in methods
    ]
    return [json.loads(one.stdout.splitlines()[-1]) for one in found]


def measure(
    model: str | None, dtype: str, method: str, tokens: int, batch: int, layer_sets: Path | None = None
) -> dict[str, Any]:
    """Bytes, in this process: of weights and KV cache, of scratch, and at the peak of process and GPU."""
    sets = {} if layer_sets is None else {"layer_sets": str(layer_sets)}
    llm = SwiftLLM(model, dtype, kv_cache_tokens=CACHE_TOKENS, prefix_cache=False, **sets)
    on_gpu = llm.engine.runner.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    loaded = torch.cuda.memory_allocated() if on_gpu else psutil.Process().memory_info().rss
    _reset_peak()
    vocab = llm.engine.runner.decoder.config.vocab_size
    prompts = [[(7 * i + 11 * place) % (vocab - 1) for place in range(PROMPT_TOKENS)] for i in range(batch)]
    params = SamplingParams(max_tokens=tokens, speculation=method, ignore_eos=True)
    outputs = llm.generate(prompts, params)
    peak = peak_rss()
    cuda_peak = torch.cuda.max_memory_allocated() if on_gpu else None
    return {
        "method": method,
        "weights": llm.engine.runner.decoder.num_bytes,
        "kv_cache": llm.engine.runner.cache.num_bytes,
        "scratch": max(0, (peak if cuda_peak is None else cuda_peak) - loaded),
        "peak_rss": peak,
        "cuda_peak": cuda_peak,
        "draft_tokens": sum(out.stats.draft_tokens for out in outputs),
    }


def _reset_peak() -> None:
    """Have the kernel forget the peak of loading; where it will not, the peak is of the whole process."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_rss() -> int:
    """Bytes of resident memory at its peak."""
    lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory, hub id or .gguf file; the default model if left out")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--methods", default="off,auto", metavar="off,…")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--layer-sets", type=Path, help="made by swift_backend.optimize; static needs it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # in this process, as a line of JSON
    arguments = parser.parse_args(argv)
    methods = arguments.methods.split(",")
    options = (arguments.max_tokens, arguments.batch, arguments.layer_sets)
    if arguments.one:
        print(json.dumps(measure(arguments.model, arguments.dtype, methods[0], *options)))
        return 0
    found = measured(arguments.model, arguments.dtype, methods, *options)
    Console().print(table(found))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(found, indent=2), encoding="utf-8")
    return 0


def table(memory: Sequence[dict[str, Any]]) -> Table:
    """MiB, and what each method's peak holds over the first one's."""
    made = Table("method", "weights", "KV cache", "scratch", "peak RSS", "CUDA peak", "over the first", title="MiB")
    for one in memory:
        cuda = "–" if one["cuda_peak"] is None else f"{one['cuda_peak'] / MIB:.1f}"
        sizes = (f"{one[name] / MIB:.1f}" for name in ("weights", "kv_cache", "scratch", "peak_rss"))
        made.add_row(one["method"], *sizes, cuda, f"{(one['peak_rss'] - memory[0]['peak_rss']) / MIB:+.1f}")
    return made


if __name__ == "__main__":
    raise SystemExit(main())
