"""How much faster is each way of speculating than none, by kind of text? `python -m loadtest.speedup --dataset F …`

Methods take turns prompt by prompt in one process, so that a machine that others use too slows all of them alike. Speed
is Σ tokens / Σ seconds of decoding; the time of prompts is left out, and the token that a prompt yields with it.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from swift_backend import Completion, SamplingParams, SwiftLLM
from swift_backend.request_keys import SPECULATION_MODES
from swift_backend.text import dataset


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, as token ids, and where it comes from."""

    category: str
    token_ids: list[int]


@dataclass(slots=True)
class Tally:
    """What one method did on one category; prompts of which an answer differed from that of `off` are counted."""

    category: str
    method: str
    prompts: int = 0
    tokens: int = 0
    decode_seconds: float = 0.0
    rounds: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    first_draft_tokens: int = 0
    accepted_first_draft_tokens: int = 0
    rounds_without_draft: int = 0
    search_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    decide_seconds: float = 0.0
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    identical_to_off: int = 0
    draft_cost_ratios: list[float] = field(default_factory=list)
    layer_sets: set[str] = field(default_factory=set)

    def add(self, outputs: Sequence[Completion], plain: Sequence[Completion]) -> None:
        """Count a batch, and what `off` answered to it."""
        self.prompts += len(outputs)
        self.decode_seconds += max(out.stats.decode_seconds for out in outputs)
        self.identical_to_off += sum(
            out.token_ids == other.token_ids for out, other in zip(outputs, plain, strict=True)
        )
        for out in outputs:
            stats = out.stats
            self.tokens += max(len(out.token_ids) - 1, 0)
            self.rounds += stats.rounds
            self.draft_tokens += stats.draft_tokens
            self.accepted_draft_tokens += stats.accepted_draft_tokens
            self.first_draft_tokens += stats.first_draft_tokens
            self.accepted_first_draft_tokens += stats.accepted_first_draft_tokens
            self.rounds_without_draft += stats.rounds_without_draft
            self.search_seconds += stats.search_seconds
            self.draft_seconds += stats.draft_seconds
            self.verify_seconds += stats.verify_seconds
            self.decide_seconds += stats.decide_seconds
            self.drafted.update(stats.drafted)
            self.accepted.update(stats.accepted)
            if stats.layer_set:
                self.draft_cost_ratios.append(stats.draft_cost_ratio)
                self.layer_sets.add(stats.layer_set)

    def row(self, plain: Tally) -> dict[str, Any]:
        """The contract's row; plain: `off` on the same category."""
        return {
            "category": self.category,
            "method": self.method,
            "tokens": self.tokens,
            "decode_seconds": self.decode_seconds,
            "tokens_per_second": self.rate,
            "speedup": self.rate / plain.rate if plain.rate else 0.0,
            "acceptance_rate": _share(self.accepted_draft_tokens, self.draft_tokens),
            "first_acceptance_rate": _share(self.accepted_first_draft_tokens, self.first_draft_tokens),
            "tokens_per_round": _share(self.tokens, self.rounds),
            "drafted_per_round": _share(self.draft_tokens, self.rounds),
            "draft_cost_ratio": _share(sum(self.draft_cost_ratios), len(self.draft_cost_ratios)),
            "rounds_without_draft": _share(self.rounds_without_draft, self.rounds),
            "drafted": dict(self.drafted),
            "accepted": dict(self.accepted),
            "search_share": _share(self.search_seconds, self.decode_seconds),
            "draft_share": _share(self.draft_seconds, self.decode_seconds),
            "verify_share": _share(self.verify_seconds, self.decode_seconds),
            "decide_share": _share(self.decide_seconds, self.decode_seconds),
            "identical_to_off": self.identical_to_off,
            "prompts": self.prompts,
            "layer_sets": sorted(self.layer_sets),
        }

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return _share(self.tokens, self.decode_seconds)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    console = Console()
    options = {} if arguments.layer_sets is None else {"layer_sets": str(arguments.layer_sets)}
    llm = SwiftLLM(arguments.model, arguments.dtype, prefix_cache=False, **options)
    longest = arguments.max_prompt_tokens or llm.engine.context_length // 2
    prompts = read_prompts(llm, arguments.dataset, arguments.per_category, arguments.prompt_format, longest)
    prompts = alternating(prompts) if arguments.mixed else prompts
    sampling = {
        "max_tokens": arguments.max_tokens,
        "temperature": arguments.temperature,
        "seed": arguments.seed,
        "ignore_eos": arguments.ignore_eos,
        "max_draft_tokens": arguments.max_draft_tokens,
        "confidence_threshold": arguments.confidence_threshold,
    }
    with Progress(console=console) as progress:
        tallies = measure(llm, prompts, arguments.methods, sampling, arguments.batch, progress)
    report = make_report(llm, tallies, arguments.methods)
    console.print(table(report, arguments.methods))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2), encoding="utf-8")
    return 0


def read_prompts(
    llm: SwiftLLM, files: Iterable[Path], per_category: int, prompt_format: str | None, longest: int
) -> list[Prompt]:
    """The first turns of each category's first prompts of at most so many tokens."""
    chat = None if prompt_format is None else prompt_format == "chat"
    found: list[Prompt] = []
    for category, rows in dataset.by_category(row for file in files for row in dataset.read_rows(file)).items():
        ids = (dataset.encode_prompt(llm.engine.tokenizer, row.prompt, chat=chat) for row in rows)
        short = (one for one in ids if len(one) <= longest)
        found += [Prompt(category, one) for one in itertools.islice(short, per_category)]
    return found


def alternating(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The first one of each category, then the second ones, and so on: a stream that changes its topic all the time."""
    turn: Counter[str] = Counter()
    turns: list[int] = []
    for prompt in prompts:
        turns.append(turn[prompt.category])
        turn[prompt.category] += 1
    return [prompt for _, prompt in sorted(zip(turns, prompts, strict=True), key=lambda one: one[0])]


def measure(
    llm: SwiftLLM,
    prompts: Sequence[Prompt],
    methods: Sequence[str],
    sampling: dict[str, Any],
    batch: int,
    progress: Progress,
) -> dict[tuple[str, str], Tally]:
    """Each batch of a category's prompts with each method, `off` among them, in changing order."""
    tallies: dict[tuple[str, str], Tally] = {}
    batches = _batches(prompts, batch)
    task = progress.add_task("prompts", total=len(batches))
    llm.generate([prompts[0].token_ids], SamplingParams(max_tokens=4, speculation="fixed"))
    for number, some in enumerate(batches):
        turn = number % len(methods)
        outputs = {
            method: llm.generate(
                [prompt.token_ids for prompt in some], SamplingParams(speculation=method, **_known(method, sampling))
            )
            for method in [*methods[turn:], *methods[:turn]]
        }
        for method in methods:
            key = (some[0].category, method)
            tallies.setdefault(key, Tally(*key)).add(outputs[method], outputs["off"])
        progress.advance(task)
    return tallies


def _known(method: str, sampling: dict[str, Any]) -> dict[str, Any]:
    """Without what `off` has no use for."""
    drafting = ("max_draft_tokens", "confidence_threshold")
    return {name: value for name, value in sampling.items() if method != "off" or name not in drafting}


def _batches(prompts: Sequence[Prompt], batch: int) -> list[list[Prompt]]:
    found: list[list[Prompt]] = []
    for prompt in prompts:
        if not found or len(found[-1]) == batch or found[-1][0].category != prompt.category:
            found.append([])
        found[-1].append(prompt)
    return found


def make_report(llm: SwiftLLM, tallies: dict[tuple[str, str], Tally], methods: Sequence[str]) -> dict[str, Any]:
    """The contract's JSON."""
    totals = {method: _total(tallies.values(), method) for method in methods}
    return {
        "model": str(llm.engine.model.directory.name),
        "dtype": llm.engine.model.dtype,
        "device": str(llm.engine.runner.device),
        "rows": [tally.row(tallies[category, "off"]) for (category, _), tally in tallies.items()],
        "totals": {method: total.row(totals["off"]) for method, total in totals.items()},
    }


def _total(tallies: Iterable[Tally], method: str) -> Tally:
    total = Tally("all", method)
    for tally in tallies:
        if tally.method == method:
            for name, value in asdict(tally).items():
                if isinstance(value, int | float):
                    setattr(total, name, getattr(total, name) + value)
            total.draft_cost_ratios += tally.draft_cost_ratios
            total.layer_sets |= tally.layer_sets
            total.drafted += tally.drafted
            total.accepted += tally.accepted
    return total


def table(report: dict[str, Any], methods: Sequence[str]) -> Table:
    """Speed-ups by category and method, with c, α and tokens per round."""
    drafting = [method for method in methods if method != "off"]
    made = Table("category", "off tok/s", *drafting, title="speed-up · c · α · tokens per round")
    rows = [*report["rows"], *report["totals"].values()]
    for category in dict.fromkeys(row["category"] for row in rows):
        of = {row["method"]: row for row in rows if row["category"] == category}
        made.add_row(category, f"{of['off']['tokens_per_second']:.1f}", *(_cell(of[method]) for method in drafting))
    return made


def _cell(row: dict[str, Any]) -> str:
    figures = f"{row['draft_cost_ratio']:.2f} · {row['acceptance_rate']:.2f} · {row['tokens_per_round']:.2f}"
    differing = row["prompts"] - row["identical_to_off"]
    return f"{row['speedup']:.2f}x · {figures}" + (f" ({differing} differ)" if differing else "")


def _methods(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in SPECULATION_MODES]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are {', '.join(SPECULATION_MODES)}")
    return list(dict.fromkeys(["off", *names]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Callable[..., Any] = parser.add_argument
    add("--model", help="directory, hub id or .gguf file; the default model if left out")
    add("--dtype", default="bfloat16")
    add("--dataset", type=Path, action="append", required=True, metavar="FILE.jsonl")
    add("--methods", type=_methods, default=_methods("off,fixed,similarity,auto"), metavar="off,fixed,…")
    add("--max-tokens", type=int, default=64)
    add("--per-category", type=int, default=2)
    add("--max-prompt-tokens", type=int, help="longer ones are left out (default: half of the context)")
    add("--temperature", type=float, default=0.0)
    add("--seed", type=int, default=0)
    add("--batch", type=int, default=1)
    add("--prompt-format", choices=("chat", "raw"), help="chat where the model has a template")
    add("--ignore-eos", action="store_true")
    add("--max-draft-tokens", type=int, help="of every method; the server's if left out")
    add("--confidence-threshold", type=float)
    add("--mixed", action="store_true", help="one prompt of each category after another, in place of all of them")
    add("--layer-sets", type=Path, help="made by swift_backend.optimize; static needs it")
    add("--json", type=Path)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
