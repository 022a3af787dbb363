"""How fast is decoding here? Ratios measured interleaved in one run: `python -m loadtest.bench`.

Plain decoding against transformers' generate, a pass of several rows against one row, a draft pass against a full
one, speculation against none, and where the time of a pass goes.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from loadtest.passes import PassTimer, profile_pass
from swift_backend import Completion, SamplingParams, SwiftLLM

PROMPTS = (
    "Write a Python function that merges two sorted lists.",
    "Explain in three sentences why the sky is blue.",
    "Tom has 12 apples, gives away 5 and buys 9 more. How many has he now? Explain step by step.",
    "Translate into French: the weather is nice today and we are going to the beach.",
)
ROWS = (1, 2, 4, 8)
MODES = ("off", "fixed", "auto")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory, hub id or .gguf file; the default model if left out")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per answer")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of each interleaved measurement")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    console = Console()
    llm = SwiftLLM(arguments.model, arguments.dtype)
    console.print(environment(llm))
    report = {
        "environment": environment(llm),
        "decode": decode_against_transformers(llm, arguments.tokens, arguments.rounds),
        "passes": PassTimer(llm).measure(ROWS, rounds=20 * arguments.rounds),
        "speculation": speculation_against_off(llm, arguments.tokens, arguments.rounds),
    }
    for title in ("decode", "passes", "speculation"):
        console.print(table(title, report[title]))
    print(profile_pass(llm))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=2))


def environment(llm: SwiftLLM) -> dict[str, Any]:
    """What the figures hold for."""
    model = llm.engine.model
    return {
        "model": model.directory.name,
        "dtype": model.dtype,
        "device": str(llm.engine.runner.device),
        "cpu": platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def decode_against_transformers(llm: SwiftLLM, tokens: int, rounds: int) -> dict[str, float]:
    """Milliseconds per generated token at batch 1, greedy, the first token not counted."""
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, llm.engine.model.dtype)
    reference = AutoModelForCausalLM.from_pretrained(llm.engine.model.directory, dtype=dtype).eval()
    prompts = [llm.engine.tokenizer.encode_chat([{"role": "user", "content": p}]) for p in PROMPTS]

    @torch.inference_mode()
    def theirs(prompt: list[int], count: int) -> float:
        ids = torch.tensor([prompt])
        options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "pad_token_id": 0}
        started = perf_counter()
        reference.generate(ids, attention_mask=torch.ones_like(ids), **options)
        return perf_counter() - started

    def per_token(prompt: list[int]) -> float:
        return (theirs(prompt, tokens) - theirs(prompt, 1)) / (tokens - 1)

    def ours(prompt: list[int]) -> float:
        params = SamplingParams(max_tokens=tokens, speculation="off", ignore_eos=True)
        return llm.generate([prompt], params)[0].stats.decode_seconds / (tokens - 1)

    per_token(prompts[0]), ours(prompts[0])
    pairs = [(ours(p), per_token(p)) for _ in track(range(rounds), "plain decoding") for p in prompts]
    ratios = sorted(a / b for a, b in pairs)
    return {
        "ours_ms": 1e3 * median(a for a, _ in pairs),
        "transformers_ms": 1e3 * median(b for _, b in pairs),
        "ratio": median(ratios),
        "ratio_p10": ratios[len(ratios) // 10],
        "ratio_p90": ratios[-1 - len(ratios) // 10],
    }


def speculation_against_off(llm: SwiftLLM, tokens: int, rounds: int) -> dict[str, float]:
    """Tokens per second of each speculation mode over those of plain decoding, chat prompts, greedy."""
    prompts = [llm.engine.tokenizer.encode_chat([{"role": "user", "content": p}]) for p in PROMPTS]

    def run(prompt: list[int], mode: str) -> Completion:
        return llm.generate([prompt], SamplingParams(max_tokens=tokens, speculation=mode, ignore_eos=True))[0]

    turns = track([prompt for _ in range(rounds) for prompt in prompts], "speculation")
    answers = [{mode: run(prompt, mode) for mode in MODES} for prompt in turns]
    figures: dict[str, float] = {}
    for mode in MODES[1:]:
        pairs = [(answer["off"], answer[mode]) for answer in answers]
        figures |= {f"{mode}_{name}": value for name, value in compare(pairs).items()}
    return figures


def compare(pairs: Sequence[tuple[Completion, Completion]]) -> dict[str, float]:
    """Figures of (plain, speculating) answers to the same prompts."""
    stats = [speculating.stats for _, speculating in pairs]
    drafted = sum(one.draft_tokens for one in stats)
    return {
        "speedup": sum(off.stats.decode_seconds for off, _ in pairs) / sum(one.decode_seconds for one in stats),
        "acceptance_rate": sum(one.accepted_draft_tokens for one in stats) / max(drafted, 1),
        "drafted_per_round": drafted / sum(one.rounds for one in stats),
        "tokens_per_round": median(one.tokens_per_round for one in stats),
        "identical_to_off": sum(off.token_ids == other.token_ids for off, other in pairs) / len(pairs),
    }


def table(title: str, figures: dict[str, float]) -> Table:
    made = Table(title=title, show_header=False)
    for name, value in figures.items():
        made.add_row(name, f"{value:.3f}")
    return made


if __name__ == "__main__":
    main()
