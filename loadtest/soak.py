"""Does the server keep its promises over a thousand mixed requests? Some cancelled, some late, some wrong.

`python -m loadtest.soak --target localhost:8001 …` puts the load on a running server of any model. Every answer
must be the beginning of what its prompt gets alone; afterwards nothing runs, waits or owns a cache slot, and the
metrics add up to what the clients saw.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import Progress

from loadtest.answers import Answer, read
from loadtest.figures import Memory, Sample, difference, memory_of, read_metrics, total
from loadtest.grpc_stream import GrpcStream
from loadtest.soak_outcome import Result, Soak, growth, prompt_tokens

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"speculation": "fixed", "confidence_threshold": 0.0},
    {"speculation": "off"},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 1.0, "seed": 4, "top_p": 0.9, "speculation": "fixed", "confidence_threshold": 0.0},
    {"repetition_penalty": 1.3, "logprobs": 2},
)
# Parameters and inputs that pass Triton's own checks: the decoder model refuses them …
WRONG: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"top_p": 2.0}, {}),
    ({"unknown_key": 1}, {}),
    ({"max_tokens": 0}, {}),
    ({}, {"sampling_parameters": "{"}),
    ({"speculation": "sometimes"}, {}),
)
# … or, of these, the first model that a request comes to.
WRONG_PROMPTS: dict[str, dict[str, Any]] = {
    "swift": {"messages": "[]"},  # beside the text
    "swift_decoder": {"input_ids": [-1]},
}


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the requests: stopped by id, left by their client, with a deadline, and malformed."""

    stopped: float = 0.10
    left: float = 0.10
    late: float = 0.05
    wrong: float = 0.05


@dataclass(frozen=True, slots=True)
class Case:
    """A request that has an answer of its own."""

    model: str
    inputs: dict[str, Any]
    parameters: dict[str, Any]


GAUGES = ("swift_running_requests", "swift_waiting_requests", "swift_kv_tokens_used")


class Clients:
    """Sends the requests of a soak. text: makes the prompt of a number; all randomness is the seed's."""

    def __init__(
        self, target: str, text: Callable[[int], str], ids: Callable[[int], list[int]], max_tokens: int
    ) -> None:
        self._stream = GrpcStream(target)
        self._cases = [
            Case(
                model,
                self._inputs(model, text, ids, number),
                {"max_tokens": max_tokens, **SETTINGS[number % len(SETTINGS)]},
            )
            for number in range(2 * len(SETTINGS))
            for model in ("swift", "swift_decoder")
        ]
        self._alone = [self._ask(case) for case in self._cases]

    def close(self) -> None:
        """Close the channel."""
        self._stream.close()

    def one(self, draw: random.Random, mix: Mix) -> Result:
        """Send one request and do to it what the mix says."""
        number = draw.randrange(len(self._cases))
        case, expected = self._cases[number], self._alone[number].token_ids
        kind = draw.choices(
            ("stopped", "left", "late", "wrong", "run"),
            (mix.stopped, mix.left, mix.late, mix.wrong, 1 - mix.stopped - mix.left - mix.late - mix.wrong),
        )[0]
        if kind == "wrong":
            parameters, inputs = draw.choice([*WRONG, ({}, WRONG_PROMPTS[case.model])])
            return Result(kind, self._ask(case, inputs, parameters), [])
        if kind == "late":
            return Result(kind, self._ask(case, {}, {"timeout_ms": draw.randint(1, 60)}), expected)
        if kind == "run":
            return Result(kind, self._ask(case), expected)
        name, moment = f"soak-{uuid.UUID(int=draw.getrandbits(128))}", draw.randrange(max(1, len(expected) // 2))

        def withdraw(call: Any, answer: Answer) -> None:
            if len(answer.chunks) == moment + 1 and not answer.chunks[-1].final:
                if kind == "left":
                    call.cancel()
                else:
                    self.stop(name)

        known = prompt_tokens(Result(kind, self._alone[number], expected))
        return Result(kind, self._ask(case, {}, {}, withdraw, name), expected, known)

    def stop(self, request_id: str) -> bool:
        """The `stop` control."""
        answer = read(self._stream, "swift_decoder", {"stop": True}, {}, request_id=request_id)
        return bool(answer.chunks and answer.chunks[0].outputs["cancelled"])

    def _ask(
        self,
        case: Case,
        inputs: dict[str, Any] | None = None,
        parameters: dict[str, Any] | None = None,
        on_chunk: Callable[[Any, Answer], None] = lambda call, answer: None,
        request_id: str = "",
    ) -> Answer:
        return read(
            self._stream,
            case.model,
            {**case.inputs, **(inputs or {})},
            {**case.parameters, **(parameters or {})},
            on_chunk,
            request_id=request_id,
        )

    def _inputs(
        self, model: str, text: Callable[[int], str], ids: Callable[[int], list[int]], number: int
    ) -> dict[str, Any]:
        streamed = {"stream": number % 3 != 2}
        return (
            {"input_ids": ids(number), **streamed}
            if model == "swift_decoder"
            else {"text_input": text(number), **streamed}
        )


def soak(
    clients: Clients, metrics_url: str, *, requests: int, users: int, mix: Mix, seed: int, server: int | None = None
) -> Soak:
    """Send so many requests, `users` at a time, and wait until the server is at rest. server: its process id."""
    before, lock, done, memory = read_metrics(metrics_url), threading.Lock(), 0, list[Memory]()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("requests", total=requests)

        def one(number: int) -> Result:
            nonlocal done
            result = clients.one(random.Random(f"{seed} {number}"), mix)
            with lock:
                done += 1
                progress.advance(task)
                if server is not None and done % max(1, requests // 40) == 0:
                    memory.append(memory_of(server))
            return result

        with ThreadPoolExecutor(users) as pool:
            results = list(pool.map(one, range(requests)))
    return Soak(results, difference(at_rest(metrics_url), before), memory)


def at_rest(metrics_url: str, seconds: float = 10.0) -> dict[Sample, float]:
    """The metrics once nothing runs, waits or owns a slot; TimeoutError where that does not come about."""
    deadline = time.monotonic() + seconds
    while True:
        metrics = read_metrics(metrics_url)
        if all(total(metrics, name) == 0 for name in GAUGES):
            time.sleep(0.2)  # the last counters follow the last answers by moments
            return read_metrics(metrics_url)
        if time.monotonic() > deadline:
            raise TimeoutError(f"still there: { {name: total(metrics, name) for name in GAUGES} }")
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", default="localhost:8001", help="gRPC address (default: localhost:8001)")
    add("--metrics-url", default="http://localhost:8002/metrics")
    add("--requests", type=int, default=1000)
    add("--users", type=int, default=16)
    add("--max-tokens", type=int, default=24)
    add("--seed", type=int, default=1)
    add("--server", type=int, help="the server's process id, if it runs here: its memory is watched")
    arguments = parser.parse_args()
    clients = Clients(
        arguments.target,
        lambda number: f"Write {number + 2} words about the number {number}.",
        lambda number: [number + 5, 7, 11, number + 1],
        arguments.max_tokens,
    )
    came = soak(
        clients,
        arguments.metrics_url,
        requests=arguments.requests,
        users=arguments.users,
        mix=Mix(),
        seed=arguments.seed,
        server=arguments.server,
    )
    console = Console()
    console.print(Counter(f"{result.kind}: {result.answer.finish_reason or 'error'}" for result in came.results))
    console.print("troubles:", dict(came.troubles), "metrics:", came.mismatches or "add up")
    if came.memory:
        for name, values in came.memory_columns.items():
            console.print("{}: second half over first {:+.1%}, steady growth {:+.1%}".format(name, *growth(values)))
    clients.close()
    return int(bool(came.troubles or came.mismatches))


if __name__ == "__main__":
    raise SystemExit(main())
