"""A real server that is full, killed, stopped or stalled: every client hears of it in time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from swift_client import (
    ConnectionFailed,
    DeadlineExceeded,
    QueueFull,
    Retry,
    ServerError,
    SwiftClientError,
    Timeout,
    Unavailable,
)

from loadtest.figures import read_metrics, total
from swift_backend.serving.server_process import RunningServer, running_server
from tests.client.conftest import DECODER, DOOR
from tests.client.conftest import LASTING as ENDLESS
from tests.client.drivers import DrivenStream, Driver
from tests.client.wire_servers import within
from tests.server.processes import stubs

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

# Eight of them fit into the cache.
LASTING = {**ENDLESS, "max_tokens": 20_000}
KINDS = [(kind, protocol) for kind in ("sync", "async") for protocol in ("grpc", "http")]


@pytest.fixture
def server(lasting_environment: dict[str, str]) -> Iterator[RunningServer]:
    limits = {"SWIFT_MAX_RUNNING": "8", "SWIFT_MAX_WAITING": "1", "OMP_NUM_THREADS": "1"}
    with running_server(environment={**lasting_environment, **limits}, exit_timeout=20) as running:
        time.sleep(1.5)  # a watch has seen the doors by then, also on a busy machine
        yield running


@pytest.fixture
def drivers(server: RunningServer) -> Iterator[list[Driver]]:
    """One of each kind, with a metrics page."""
    urls = {"grpc": server.grpc_url, "http": server.http_url}
    retry = Retry(limit=1, delay=0.05)
    made = [Driver(kind, urls[protocol], metrics_url=server.metrics_url, retry=retry) for kind, protocol in KINDS]
    yield made
    for driver in made:
        driver.close()


class Reader(threading.Thread):
    """Reads a stream to whatever its end is."""

    def __init__(self, stream: DrivenStream) -> None:
        super().__init__(daemon=True)
        self.stream = stream
        self.error: SwiftClientError | None = None
        self.ended = 0.0
        self.start()

    def run(self) -> None:
        try:
            self.stream.result()
        except SwiftClientError as error:
            self.error = error
        self.ended = time.monotonic()


def busy(server: RunningServer) -> float:
    return total(read_metrics(server.metrics_url), "swift_running_requests")


def readers_of(drivers: list[Driver], timeout: Timeout | None = None) -> list[Reader]:
    """Two streams of each client, one through the ensemble, in the middle of their answers."""
    streams = [d.stream(**prompt, **LASTING, timeout=timeout) for d in drivers for prompt in (DOOR, DECODER)]
    readers = [Reader(stream) for stream in streams]
    within(20, lambda: all(len(reader.stream.token_ids) > 5 for reader in readers))
    return readers


def test_a_full_queue_is_refused_and_tried_again(server: RunningServer, drivers: list[Driver]) -> None:
    readers = readers_of(drivers)
    waiting = Reader(drivers[0].stream(**DOOR, **LASTING))
    within(5, lambda: total(read_metrics(server.metrics_url), "swift_waiting_requests") == 1)
    for driver in drivers:
        with pytest.raises(QueueFull, match=r"the waiting queue is full: 1 of 1 requests wait \(request r\)"):
            driver.generate("w5", request_id="r")
    assert total(read_metrics(server.metrics_url), "swift_requests_total", outcome="unavailable") == 2 * len(drivers)
    for reader in [waiting, *readers]:
        drivers[0].call("cancel", reader.stream.request_id)
    within(5, lambda: all(reader.ended for reader in [waiting, *readers]))
    assert {reader.stream.finish_reason for reader in [waiting, *readers]} == {"cancelled"}


def test_a_killed_server(server: RunningServer, drivers: list[Driver]) -> None:
    readers = readers_of(drivers)
    os.kill(server.pid, signal.SIGKILL)
    killed = time.monotonic()
    within(5, lambda: all(reader.ended for reader in readers))
    assert max(reader.ended for reader in readers) - killed < 5
    assert [type(reader.error) for reader in readers] == [ConnectionFailed] * 8
    for driver in drivers:
        with pytest.raises(ConnectionFailed, match=r"\(request r\)"):
            driver.generate("w5", request_id="r")


def test_a_killed_model_process(server: RunningServer, drivers: list[Driver]) -> None:
    """The server goes down with it, within seconds; Triton alone would let everybody wait."""
    readers = readers_of(drivers)
    stubs(server.pid, "swift_decoder")[0].kill()
    within(8, lambda: all(reader.ended for reader in readers))
    assert all(isinstance(reader.error, ConnectionFailed | ServerError) for reader in readers)


@pytest.mark.parametrize("protocols", [("grpc",), ("grpc", "http")], ids=["grpc", "both"])
def test_a_stopping_server(server: RunningServer, drivers: list[Driver], protocols: tuple[str, ...]) -> None:
    """Over gRPC everybody gets what there is. Open HTTP streams keep Triton's HTTP door from closing, by which the
    model would see that it is to end: then all are cut off when the server's time is over."""
    readers = readers_of([d for d, (_, protocol) in zip(drivers, KINDS, strict=True) if protocol in protocols])
    os.kill(server.pid, signal.SIGTERM)
    within(20 if protocols == ("grpc",) else 30, lambda: all(reader.ended for reader in readers))
    for reader in readers:
        cut = isinstance(reader.error, ConnectionFailed | Unavailable) and "http" in protocols
        assert reader.stream.finish_reason == "cancelled" or cut


def test_a_model_that_stalls_between_tokens(server: RunningServer, drivers: list[Driver]) -> None:
    """A limit notices it, and its `stop` is heard when the model goes on.

    (If it goes on later than a second after a request came, Triton 2.51 dies of that, whoever asked.)
    """
    readers = readers_of(drivers, Timeout(between_tokens=0.3))
    [process] = stubs(server.pid, "swift_decoder")
    process.suspend()
    timer = threading.Timer(0.8, process.resume)
    timer.start()
    within(10, lambda: all(reader.ended for reader in readers))
    timer.join()
    for reader in readers:
        assert isinstance(reader.error, DeadlineExceeded) and reader.error.limit == "between_tokens"
    within(5, lambda: busy(server) == 0)
