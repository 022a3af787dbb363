"""Do running streams stall while long prompts arrive? The gaps between their chunks, with and without.

`python -m loadtest.stalls --dtype float32` starts a server of its own: so many streams run, and beside them one client
sends long prompts, one after the other. It fails where the 99th percentile of the gaps exceeds five times their median.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from loadtest.answers import Answer, Background, read
from loadtest.grpc_stream import GrpcStream
from loadtest.own_server import add_model_options, model_environment
from swift_backend.serving.server_process import running_server

ALLOWED = 5.0
SHORT_PROMPT = 24


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds between chunks of running streams; worst_ratio: of the streams' own 99th percentiles and medians."""

    count: int
    median: float
    p99: float
    longest: float
    worst_ratio: float


def main() -> int:
    arguments = _parser().parse_args()
    console = Console()
    with running_server(environment=model_environment(arguments), ready_timeout=900) as server:
        stream = GrpcStream(server.grpc_target)
        console.print(f"{arguments.streams} streams alone for {arguments.seconds:g} s")
        alone, _ = run(stream, arguments, long_prompts=False)
        console.print(f"and for {arguments.seconds:g} s beside prompts of {arguments.prompt_tokens} tokens")
        beside, prompts = run(stream, arguments, long_prompts=True)
        stream.close()
    seconds = [prompt.chunks[0].at - prompt.started for prompt in prompts if prompt.chunks]
    report = {
        "alone": asdict(alone),
        "beside": asdict(beside),
        "long_prompts": len(seconds),
        "long_prompt_seconds": median(seconds) if seconds else None,
    }
    console.print_json(json.dumps(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))
    return int(beside.worst_ratio >= ALLOWED or not seconds)


def run(stream: GrpcStream, arguments: argparse.Namespace, *, long_prompts: bool) -> tuple[Gaps, list[Answer]]:
    """The gaps of the running streams, and the answers to the long prompts that were through."""
    draw = random.Random(arguments.seed)
    until = time.monotonic() + arguments.seconds
    ids = functools.partial(_ids, draw, arguments.vocabulary)

    def running(turn: int) -> Answer:
        parameters = {"max_tokens": arguments.max_tokens, "ignore_eos": True, "speculation": arguments.mode}
        return read(stream, "swift_decoder", {"input_ids": ids(SHORT_PROMPT), "stream": True}, parameters)

    def long(turn: int) -> Answer:
        inputs = {"input_ids": ids(arguments.prompt_tokens), "stream": True}
        return read(stream, "swift_decoder", inputs, {"max_tokens": 1, "ignore_eos": True})

    streams = [Background(running) for _ in range(arguments.streams)]
    time.sleep(arguments.seconds / 10)  # the gaps before are those of the others' prompts
    prompts = Background(long) if long_prompts else None
    begun = time.monotonic()
    time.sleep(max(0.0, until - begun))
    through = prompts.stop() if prompts else []
    answers = [background.stop() for background in streams]
    return gaps_of(answers, begun), through


def gaps_of(streams: Sequence[Sequence[Answer]], begun: float) -> Gaps:
    """Over all answers of each stream, as far as they came after `begun`."""
    each = [[gap for answer in answers for gap in _gaps_after(answer, begun)] for answers in streams]
    each = [gaps for gaps in each if gaps]
    everything = [gap for gaps in each for gap in gaps]
    ratios = [float(np.percentile(gaps, 99)) / median(gaps) for gaps in each]
    return Gaps(len(everything), median(everything), float(np.percentile(everything, 99)), max(everything), max(ratios))


def _gaps_after(answer: Answer, begun: float) -> list[float]:
    return [gap for chunk, gap in zip(answer.chunks, answer.gaps, strict=False) if chunk.at >= begun]


def _ids(draw: random.Random, vocabulary: int, count: int) -> Any:
    """Random tokens: no two prompts share a beginning."""
    return np.array([draw.randrange(3, vocabulary) for _ in range(count)], dtype=np.int32)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    add = parser.add_argument
    add("--streams", type=int, default=8, help="that run (default: 8)")
    add("--seconds", type=float, default=60.0, help="of each of the two parts (default: 60)")
    add("--prompt-tokens", type=int, default=4000, help="of the long prompts (default: 4000)")
    add("--max-tokens", type=int, default=150, help="of the running answers (default: 150)")
    add("--mode", default="auto", help="speculation of the running streams (default: auto)")
    add("--vocabulary", type=int, default=40000, help="prompts are random tokens below it (default: 40000)")
    add("--seed", type=int, default=1)
    add("--json", type=Path, help="write the figures here as well")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
