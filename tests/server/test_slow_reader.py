"""A client that stops reading slows nobody down and fills no memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import pytest

from loadtest.answers import Answer, read
from loadtest.figures import memory_of
from loadtest.grpc_stream import GrpcStream, chunks_of
from swift_backend.serving.server_process import RunningServer, running_server

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

PAUSE_SECONDS = 10.0
STREAM = {"ignore_eos": True, "speculation": "off"}


@pytest.fixture(scope="module")
def server(lasting_environment: dict[str, str]) -> Iterator[RunningServer]:
    with running_server(environment={**lasting_environment, "SWIFT_DEBUG": "false"}) as running:
        yield running


def pace(stream: GrpcStream, seconds: float) -> float:
    """The median gap between chunks of another client's stream in that time."""
    until = time.monotonic() + seconds

    def leave(call: object, answer: Answer) -> None:
        if time.monotonic() > until:
            call.cancel()  # type: ignore[attr-defined]

    return median(
        read(
            stream, "swift_decoder", {"input_ids": [9, 8], "stream": True}, STREAM | {"max_tokens": 30_000}, leave
        ).gaps
    )


def test_a_client_that_stops_reading(server: RunningServer) -> None:
    """gRPC lets the server write on, into Triton's memory: what is unread is bounded by the answer's length."""
    lazy, brisk = GrpcStream(server.grpc_target), GrpcStream(server.grpc_target)
    pace(brisk, 1)
    both = read(lazy, "swift_decoder", {"input_ids": [7], "stream": True}, STREAM | {"max_tokens": 200})
    assert len(both.token_ids) == 200
    tokens = 4000
    call = lazy.call("swift_decoder", {"input_ids": [5, 6, 7], "stream": True}, STREAM | {"max_tokens": tokens})
    next(call)
    before = memory_of(server.pid)
    beside = pace(brisk, PAUSE_SECONDS)
    after = memory_of(server.pid)
    rest = [token for chunk in chunks_of(call) for token in chunk.outputs["output_ids"]]
    assert len(rest) in range(tokens - 20, tokens)
    reading = pace_beside_a_reader(lazy, brisk)
    assert beside < 1.5 * reading
    assert after.resident - before.resident < 60 * 2**20
    assert after.shared == before.shared
    lazy.close()
    brisk.close()


def pace_beside_a_reader(other: GrpcStream, brisk: GrpcStream) -> float:
    """The same with a second client that does read."""
    call = other.call("swift_decoder", {"input_ids": [5, 6, 7], "stream": True}, STREAM | {"max_tokens": 30_000})
    gaps = []
    until = time.monotonic() + 3
    mine = brisk.call("swift_decoder", {"input_ids": [9, 8], "stream": True}, STREAM | {"max_tokens": 30_000})
    theirs, last = chunks_of(call), time.monotonic()
    for _ in chunks_of(mine):
        now = time.monotonic()
        gaps.append(now - last)
        last = now
        next(theirs)
        if now > until:
            break
    mine.cancel()
    call.cancel()
    return median(gaps)
