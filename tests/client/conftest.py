"""The backends on which the clients are tried: a FakeTransport, small servers in this process, a real tritonserver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from swift_client import FakeTransport, Pause, fake_response
from swift_client.core.request import Response

from loadtest.figures import read_metrics, total
from swift_backend.serving.server_process import RunningServer, running_server
from tests.client.drivers import Driver
from tests.client.wire_servers import Behaviour, GrpcServer, HttpServer

LASTING = {"max_tokens": 30_000, "ignore_eos": True, "speculation": "off"}
DOOR = {"prompt": "w5 w6 w7"}
DECODER = {"input_ids": [5, 6, 7]}


@dataclass
class Backend:
    """Where a client goes; `busy` says how many requests run there now."""

    url: str
    options: dict[str, Any]
    busy: Callable[[], float]
    script: Callable[[Sequence[Sequence[Any]]], None]
    drivers: list[Driver] = field(default_factory=list)
    behaviour: Behaviour | None = None
    transport: FakeTransport | None = None

    def driver(self, kind: str, **options: Any) -> Driver:
        driver = Driver(kind, self.url, **{**self.options, **options})
        self.drivers.append(driver)
        return driver


def lasting_answer(chunks: int = 3000, pause: float = 0.005) -> list[Response | Pause]:
    """What LASTING gets: more than anybody waits for."""
    step = (fake_response(" w1", [1]), Pause(pause))
    return [one for _ in range(chunks) for one in step] + [fake_response(" w1", [1], "length")]


@pytest.fixture(scope="module")
def real_server(lasting_environment: dict[str, str]) -> Iterator[RunningServer]:
    limits = {"SWIFT_MAX_RUNNING": "64", "OMP_NUM_THREADS": "1"}
    with running_server(environment={**lasting_environment, **limits}) as running:
        yield running


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["grpc", "http"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["fake", "wire", pytest.param("real", marks=pytest.mark.server)])
def backend(request: pytest.FixtureRequest, protocol: str) -> Iterator[Backend]:
    """One of the three."""
    if request.param == "wire":
        yield from wire_backend(protocol)
        return
    is_real = request.param == "real"
    backend = real_backend(request.getfixturevalue("real_server"), protocol) if is_real else fake_backend(protocol)
    yield backend
    close_all(backend)


@pytest.fixture
def wire(protocol: str) -> Iterator[Backend]:
    """Only the servers in this process."""
    yield from wire_backend(protocol)


def fake_backend(protocol: str) -> Backend:
    backend = Backend(f"{protocol}://nowhere", {}, lambda: 0, lambda answers: None)

    def script(answers: Sequence[Sequence[Any]]) -> None:
        backend.transport = FakeTransport(*answers, metrics_page="swift_running_requests 3\n")
        backend.options["transport"] = backend.transport
        transport = backend.transport
        backend.busy = lambda: transport.running

    backend.script = script
    script([])
    return backend


def wire_backend(protocol: str) -> Iterator[Backend]:
    behaviour, pages = Behaviour(), HttpServer(Behaviour())
    server = GrpcServer(behaviour) if protocol == "grpc" else HttpServer(behaviour)
    backend = Backend(
        server.url,
        {"metrics_url": f"{pages.url}/metrics"},
        lambda: len(behaviour._stopped),
        lambda answers: setattr(behaviour, "answers", list(answers)),
        behaviour=behaviour,
    )
    yield backend
    close_all(backend)
    server.close()
    pages.close()


def real_backend(server: RunningServer, protocol: str) -> Backend:
    def busy() -> float:
        metrics = read_metrics(server.metrics_url)
        return total(metrics, "swift_running_requests") + total(metrics, "swift_waiting_requests")

    url = server.grpc_url if protocol == "grpc" else server.http_url
    return Backend(url, {"metrics_url": server.metrics_url}, busy, lambda answers: None)


def close_all(backend: Backend) -> None:
    for driver in backend.drivers:
        driver.close()
