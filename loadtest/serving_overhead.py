"""What does Triton add? Time to the first token and per token, over the same engine in this process.

    python -m loadtest.serving_overhead --dataset FILE.jsonl

A server of its own and a SwiftLLM answer the same prompts, so many at a time, in turn, so that a machine that others
use too slows both alike. Through Triton the prompt is text, tokens are read from a gRPC stream, and this process is the
client on the same cores; without it the text is tokenised and the engine stepped here.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from loadtest.answers import read
from loadtest.grpc_stream import GrpcStream
from loadtest.own_server import add_model_options, model_environment
from loadtest.prompts import read_prompts
from swift_backend import SamplingParams, SwiftLLM
from swift_backend.sequence import Output, Request
from swift_backend.serving.server_process import running_server

SAMPLE = Path(__file__).with_name("sample.jsonl")


@dataclass(frozen=True, slots=True)
class Times:
    """Of one answer: seconds from asking to its first token, and from there to its last one per token after it."""

    first: float
    per_token: float

    @classmethod
    def of(cls, started: float, news: Sequence[tuple[float, int]]) -> Times:
        """news: when deltas came and how many tokens each brought; ValueError for an answer of one token or none."""
        timed = [(at, count) for at, count in news if count]
        later = sum(count for _, count in timed[1:])
        if not later:
            raise ValueError("an answer of one token has no time per token")
        return cls(timed[0][0] - started, (timed[-1][0] - timed[0][0]) / later)


Source = Callable[[Sequence[str]], list[Times]]


@dataclass(frozen=True, slots=True)
class Level:
    """What so many users at a time saw: for each round the medians of their answers, with Triton and without."""

    users: int
    triton: Sequence[Times]
    alone: Sequence[Times]

    @property
    def added_to_first(self) -> list[float]:
        """Seconds, by round."""
        return [with_.first - without.first for with_, without in zip(self.triton, self.alone, strict=True)]

    @property
    def per_token_ratios(self) -> list[float]:
        """By round."""
        return [with_.per_token / without.per_token for with_, without in zip(self.triton, self.alone, strict=True)]


def measure(triton: Source, alone: Source, prompts: Sequence[str], users: int, rounds: int) -> Level:
    """Rounds of one question per user; who begins changes."""
    found: dict[str, list[Times]] = {"triton": [], "alone": []}
    sources = [("triton", triton), ("alone", alone)]
    for _, source in sources:
        source(prompts[:users])
    for number in track(range(rounds), f"{users} at a time", console=Console(stderr=True)):
        asked = [prompts[(number * users + i) % len(prompts)] for i in range(users)]
        for name, source in sources if number % 2 else reversed(sources):
            answers = source(asked)
            found[name].append(Times(median(a.first for a in answers), median(a.per_token for a in answers)))
    return Level(users, found["triton"], found["alone"])


def through_triton(stream: GrpcStream, parameters: dict[str, Any]) -> Source:
    def ask(prompt: str) -> Times:
        answer = read(stream, "swift", {"text_input": prompt, "stream": True}, parameters)
        if answer.error:
            raise RuntimeError(answer.error)
        return Times.of(answer.started, [(chunk.at, len(chunk.outputs["output_ids"])) for chunk in answer.chunks])

    def ask_all(prompts: Sequence[str]) -> list[Times]:
        with ThreadPoolExecutor(len(prompts)) as users:
            return list(users.map(ask, prompts))

    return ask_all


def in_this_process(llm: SwiftLLM, params: SamplingParams) -> Source:
    def ask_all(prompts: Sequence[str]) -> list[Times]:
        engine, started = llm.engine, time.monotonic()
        news: list[list[tuple[float, int]]] = [[] for _ in prompts]
        for number, (prompt, heard) in enumerate(zip(prompts, news, strict=True)):

            def hear(output: Output, heard: list[tuple[float, int]] = heard) -> None:
                if output.error is not None:
                    raise output.error
                heard.append((time.monotonic(), len(output.token_ids)))

            engine.submit(Request(f"alone-{number}", engine.tokenizer.encode(prompt), params, hear))
        while engine.step() or not engine.idle:
            pass
        return [Times.of(started, heard) for heard in news]

    return ask_all


def table_of(levels: Sequence[Level], title: str) -> Table:
    """Medians over the rounds, and the 10th to 90th percentile of the pairs."""
    table = Table("users", "first token, ms: alone", "Triton adds", "per token, ms: alone", "ratio", title=title)
    for level in levels:
        first = [1e3 * added for added in level.added_to_first]
        table.add_row(
            str(level.users),
            f"{1e3 * median(one.first for one in level.alone):.1f}",
            f"{median(first):.1f} ({_spread(first, '.1f')})",
            f"{1e3 * median(one.per_token for one in level.alone):.2f}",
            f"{median(level.per_token_ratios):.3f} ({_spread(level.per_token_ratios, '.3f')})",
        )
    return table


def _spread(values: Sequence[float], form: str) -> str:
    low, *_, high = quantiles(values, n=10) if len(values) > 1 else [values[0]] * 2
    return f"{low:{form}} to {high:{form}}"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    prompts = read_prompts(arguments.dataset or [SAMPLE], arguments.prompts)
    asked: dict[str, Any] = {"max_tokens": arguments.tokens, "ignore_eos": True, "speculation": arguments.speculation}
    llm = SwiftLLM(arguments.model, arguments.dtype, prefix_cache=False)
    alone = in_this_process(llm, SamplingParams(**asked))
    environment = {**model_environment(arguments), "SWIFT_PREFIX_CACHE": "false"}
    with running_server(environment=environment, ready_timeout=900) as server:
        stream = GrpcStream(server.grpc_target)
        triton = through_triton(stream, asked)
        levels = [measure(triton, alone, prompts, users, arguments.rounds) for users in arguments.users]
        stream.close()
    Console().print(table_of(levels, f"what Triton adds, {arguments.speculation}, {arguments.tokens} tokens an answer"))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--dataset", type=Path, action="append", metavar="FILE.jsonl", help="default: a small sample")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=64, help="per answer")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--users", type=int, nargs="+", default=[1, 8], help="at a time")
    parser.add_argument("--speculation", default="off")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
