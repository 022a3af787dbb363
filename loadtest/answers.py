"""What did one streaming client get, and when? A request over gRPC, read to its end on a thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from loadtest.grpc_stream import Chunk, GrpcStream, StreamError, chunks_of


@dataclass(slots=True)
class Answer:
    """Everything that one client saw; times are monotonic seconds.

    error: the message of an error response, or of a broken call. ids and texts are of the chunks put together.
    """

    started: float
    chunks: list[Chunk] = field(default_factory=list)
    error: str = ""
    ended: float = 0.0

    @property
    def token_ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.outputs["output_ids"]]

    @property
    def text(self) -> str:
        return "".join(chunk.outputs["text_output"] for chunk in self.chunks)

    @property
    def finish_reason(self) -> str:
        """ "" while there is none."""
        return self.chunks[-1].outputs["finish_reason"] if self.chunks else ""

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive chunks."""
        times = [chunk.at for chunk in self.chunks]
        return [later - earlier for earlier, later in itertools.pairwise(times)]


def read(
    stream: GrpcStream,
    model: str,
    inputs: dict[str, Any],
    parameters: dict[str, Any],
    on_chunk: Callable[[Any, Answer], None] = lambda call, answer: None,
    **rest: Any,
) -> Answer:
    """Send a request and read all of its answer; on_chunk(call, answer) may cancel the call. rest: request_id."""
    answer = Answer(time.monotonic())
    try:
        call = stream.call(model, inputs, parameters, **rest)
        for chunk in chunks_of(call):
            answer.chunks.append(chunk)
            on_chunk(call, answer)
    except StreamError as error:
        answer.error = str(error)
    except grpc.RpcError as error:
        answer.error = f"{error.code().name}: {error.details()}"
    answer.ended = time.monotonic()
    return answer


def read_many(tasks: Sequence[Callable[[], Answer]], users: int) -> list[Answer]:
    """The answers of all tasks in order, `users` of them at a time."""
    with ThreadPoolExecutor(users) as pool:
        return list(pool.map(lambda task: task(), tasks))


class Background:
    """Repeats a task until it is told to stop; `answers` has what came of it."""

    def __init__(self, task: Callable[[int], Answer]) -> None:
        self.answers: list[Answer] = []
        self._task = task
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> list[Answer]:
        """Wait for the task that is under way."""
        self._stopped.set()
        self._thread.join()
        return self.answers

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.answers.append(self._task(len(self.answers)))
