"""What does swift_client cost per chunk, over the generated stub that tritonclient brings?

    python -m loadtest.client_overhead --url grpc://localhost:8001

Without a URL it starts a server of its own. Rounds are interleaved, and take turns in who begins; the server's own time
per chunk is in both, so that the ratio is what a user of this server sees.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from swift_client import AsyncSwiftClient, SwiftClient

from loadtest.grpc_stream import GrpcStream
from loadtest.own_server import add_model_options, model_environment

PROMPT = "The swift is a bird that"
Measured = tuple[int, float]  # chunks, seconds from the first of them to the last


@dataclass(frozen=True, slots=True)
class Overhead:
    """Of one client: seconds per chunk by round, and of the stub in the same rounds."""

    name: str
    ours: Sequence[float]
    raw: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        """By round."""
        return [mine / theirs for mine, theirs in zip(self.ours, self.raw, strict=True)]

    def __str__(self) -> str:
        low, *_, high = quantiles(self.ratios, n=10)
        return (
            f"{self.name}: {median(self.ours) * 1e3:.3f} ms per chunk, raw stub {median(self.raw) * 1e3:.3f} ms, "
            f"ratio {median(self.ratios):.3f} (10th to 90th percentile {low:.3f} to {high:.3f}, "
            f"{len(self.ours)} rounds)"
        )


def measure(sources: dict[str, Callable[[], Measured]], rounds: int) -> list[Overhead]:
    """ "raw" is what the others are compared with."""
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    for source in sources.values():
        source()
    for number in range(rounds):
        names = list(sources)
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            chunks, took = sources[name]()
            seconds[name].append(took / (chunks - 1))
    return [Overhead(name, ours, seconds["raw"]) for name, ours in seconds.items() if name != "raw"]


def time_chunks(chunks: Iterator[Any]) -> Measured:
    """Of a stream of at least two chunks."""
    next(chunks)
    first, count = time.perf_counter(), 1
    for _ in chunks:
        count += 1
    return count, time.perf_counter() - first


@contextlib.contextmanager
def sources_at(url: str, tokens: int) -> Iterator[dict[str, Callable[[], Measured]]]:
    """The stub, which decodes nothing; the stub with tritonclient's results read; and both of our clients."""
    sampling: dict[str, Any] = {"max_tokens": tokens, "ignore_eos": True, "speculation": "off"}
    inputs = {"text_input": PROMPT, "stream": True}
    stub, loop = GrpcStream(url.removeprefix("grpc://")), asyncio.new_event_loop()
    aio = AsyncSwiftClient(url)

    async def read() -> Measured:
        async with aio.stream(PROMPT, **sampling) as stream:
            await anext(stream)
            first, count = time.perf_counter(), 1
            async for _ in stream:
                count += 1
        return count, time.perf_counter() - first

    with SwiftClient(url) as client:
        yield {
            "raw": lambda: time_chunks(stub.call("swift", inputs, sampling)),
            "raw, results read": lambda: time_chunks(stub.stream("swift", inputs, sampling)),
            "SwiftClient": lambda: time_chunks(client.stream(PROMPT, **sampling)),
            "AsyncSwiftClient": lambda: loop.run_until_complete(read()),
        }
    loop.run_until_complete(aio.aclose())
    loop.close()
    stub.close()


@contextlib.contextmanager
def _server(arguments: argparse.Namespace) -> Iterator[str]:
    if arguments.url:
        yield arguments.url
        return
    from swift_backend.serving.server_process import running_server

    with running_server(environment=model_environment(arguments)) as server:
        yield server.grpc_url


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each client."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.client_overhead", description=__doc__)
    parser.add_argument("--url", help="grpc://HOST:PORT of a running server")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    add_model_options(parser)
    arguments = parser.parse_args(argv)
    with _server(arguments) as url, sources_at(url, arguments.tokens) as sources:
        for overhead in measure(sources, arguments.rounds):
            print(overhead)


if __name__ == "__main__":
    main()
