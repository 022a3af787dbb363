"""How many tokens per second at which concurrency, and is every answer what its prompt gets alone?

`python -m loadtest.concurrency --dtype float32 --dataset FILE.jsonl …` starts a server of its own. Every level answers
the same prompts, each once, with so many clients at a time; the modes take turns within a level, and the levels within
a round, so that a machine that others use too slows all of them alike.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from loadtest.answers import Answer, read, read_many
from loadtest.grpc_stream import GrpcStream
from loadtest.own_server import add_model_options, model_environment
from loadtest.prompts import as_messages, read_prompts
from swift_backend.serving.server_process import running_server

MODES = ("off", "fixed", "auto")
# A curve falls where a level is slower than the best one below it by more than the noise of these machines.
NOISE = 0.05
SEED = 7


@dataclass(frozen=True, slots=True)
class Level:
    """One mode at one concurrency. different: answers that are not their prompt's solo answer."""

    mode: str
    users: int
    tokens: int
    seconds: float
    errors: int
    different: int

    @property
    def rate(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer left its solo answer, and by how much (log probability) the solo token won there."""

    mode: str
    users: int
    prompt: int
    position: int
    margin: float


def main() -> int:
    arguments = _parser().parse_args()
    console = Console()
    prompts = read_prompts(arguments.dataset, arguments.prompts)
    environment = {**model_environment(arguments), "SWIFT_PREFIX_CACHE": str(arguments.prefix_cache).lower()}
    with running_server(environment=environment, ready_timeout=900) as server:
        stream = GrpcStream(server.grpc_target)
        clients = Clients(stream, prompts, arguments.max_tokens, arguments.temperature)
        solo = clients.answer("off", 1, logprobs=2)
        levels, divergences = measure(clients, solo, arguments.modes, arguments.users, arguments.rounds, console)
        stream.close()
    report = {
        "model": arguments.model or "SmolLM2-135M-Instruct",
        "dtype": arguments.dtype,
        "temperature": arguments.temperature,
        "threads": os.cpu_count(),
        "levels": [{**asdict(level), "tokens_per_second": level.rate} for level in levels],
        "divergences": [asdict(one) for one in divergences],
    }
    console.print(table(levels, arguments.modes, arguments.users))
    for one in divergences:
        console.print(f"near tie: {one}")
    falls = falling(levels)
    for fall in falls:
        console.print(f"[red]falls:[/red] {fall}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))
    inexact = arguments.dtype == "float32" and any(level.different for level in levels)
    return int(inexact or bool(falls) or any(level.errors for level in levels))


class Clients:
    """Asks for all prompts, so many at a time."""

    def __init__(self, stream: GrpcStream, prompts: Sequence[str], max_tokens: int, temperature: float) -> None:
        self._stream = stream
        self._prompts = prompts
        self._sampling = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": temperature, "seed": SEED}

    def answer(self, mode: str, users: int, **more: Any) -> list[Answer]:
        """The answers in the order of the prompts."""
        parameters = {**self._sampling, "speculation": mode, **more}
        ask = functools.partial(read, self._stream, "swift", parameters=parameters)
        return read_many(
            [functools.partial(ask, inputs={"messages": as_messages(p), "stream": True}) for p in self._prompts], users
        )


def measure(
    clients: Clients, solo: list[Answer], modes: Sequence[str], users: Sequence[int], rounds: int, console: Console
) -> tuple[list[Level], list[Divergence]]:
    """Every round of every mode and level, and the answers that differ from the solo ones."""
    levels: list[Level] = []
    divergences: list[Divergence] = []
    with Progress(console=console) as progress:
        task = progress.add_task("levels", total=rounds * len(users) * len(modes))
        for _ in range(rounds):
            for count in users:
                for mode in modes:
                    answers = clients.answer(mode, count)
                    differing = [d for i in range(len(solo)) if (d := _divergence(solo[i], answers[i], mode, count, i))]
                    divergences += differing
                    levels.append(_level(answers, mode, count, len(differing)))
                    console.print(
                        f"{mode}, {count} clients: {levels[-1].rate:.1f} tokens/s, {len(differing)} different"
                    )
                    progress.advance(task)
    return levels, divergences


def _level(answers: list[Answer], mode: str, users: int, different: int) -> Level:
    seconds = max(answer.ended for answer in answers) - min(answer.started for answer in answers)
    tokens = sum(len(answer.token_ids) for answer in answers)
    errors = sum(bool(answer.error) or answer.finish_reason != "length" for answer in answers)
    return Level(mode, users, tokens, seconds, errors, different)


def _divergence(solo: Answer, answer: Answer, mode: str, users: int, prompt: int) -> Divergence | None:
    ours, theirs = answer.token_ids, solo.token_ids
    if ours == theirs:
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    position = next((i for i, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
    return Divergence(mode, users, prompt, position, _margin(solo, position))


def _margin(solo: Answer, position: int) -> float:
    """How much likelier the solo token was than the next one; needs logprobs of at least 2."""
    entries = [entry for chunk in solo.chunks for entry in json.loads(chunk.outputs["logprobs"] or "[]")]
    if position >= len(entries):
        return float("nan")
    top = [other["logprob"] for other in entries[position]["top"]]
    return top[0] - top[1] if len(top) > 1 else float("nan")


def rates(levels: Sequence[Level], mode: str) -> dict[int, list[float]]:
    """The rates of a mode by concurrency, one for each round."""
    found: dict[int, list[float]] = {}
    for level in levels:
        if level.mode == mode:
            found.setdefault(level.users, []).append(level.rate)
    return found


def falling(levels: Sequence[Level]) -> list[str]:
    """Where more clients got fewer tokens per second, by medians, beyond the noise."""
    falls = []
    for mode in dict.fromkeys(level.mode for level in levels):
        best, best_at = 0.0, 0
        for users, values in sorted(rates(levels, mode).items()):
            rate = median(values)
            if rate < (1 - NOISE) * best:
                falls.append(f"{mode}: {rate:.1f} tokens/s with {users} clients, {best:.1f} with {best_at}")
            if rate > best:
                best, best_at = rate, users
    return falls


def table(levels: Sequence[Level], modes: Sequence[str], users: Sequence[int]) -> Table:
    """Tokens per second by mode and concurrency: the median, and the range of the rounds."""
    made = Table("users", *modes, "errors", "different", title="output tokens per second")
    for count in users:
        ours = [level for level in levels if level.users == count]
        cells = [_cell(rates(ours, mode)[count]) for mode in modes]
        made.add_row(str(count), *cells, str(sum(one.errors for one in ours)), str(sum(one.different for one in ours)))
    return made


def _cell(values: list[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    add = parser.add_argument
    add("--dataset", type=Path, action="append", required=True, metavar="FILE.jsonl")
    add("--prompts", type=int, default=32, help="how many prompts each level answers (default: 32)")
    add("--max-tokens", type=int, default=32, help="of each answer (default: 32)")
    add("--temperature", type=float, default=0.0, help="above 0 the tokens follow from a seed (default: 0)")
    add("--users", type=_numbers, default=[1, 2, 4, 8, 16, 32], metavar="1,2,4,…")
    add("--modes", type=lambda text: text.split(","), default=list(MODES), metavar="off,fixed,auto")
    add("--prefix-cache", action="store_true", help="every prompt after its first time costs next to nothing then")
    add("--rounds", type=int, default=3, help="repetitions of all of it (default: 3)")
    add("--json", type=Path, help="write the figures here as well")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    raise SystemExit(main())
