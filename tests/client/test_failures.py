"""Whatever goes wrong has its exception or its result, the same over gRPC and HTTP, and nobody waits for ever."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from swift_client import (
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    Pause,
    ProtocolError,
    QueueFull,
    Retry,
    ServerError,
    SwiftClientError,
    Timeout,
    Unavailable,
    fake_response,
)
from swift_client.core.request import Response

from tests.client.conftest import DOOR, Backend
from tests.client.drivers import Driver
from tests.client.wire_servers import Break, Raw, Status, Step, within

pytestmark = pytest.mark.timeout(60)

FIRST, LAST = fake_response("a", [1]), fake_response("b", [2], "stop")
FULL = Response(error="in ensemble 'swift', the waiting queue is full: 1 of 1 requests wait", final=True)
ONCE = Retry(limit=0)
QUICK = Retry(limit=2, delay=0.01)


def only(protocol: str, wanted: str) -> None:
    if protocol != wanted:
        pytest.skip(f"there is no such thing over {protocol}")


@pytest.mark.parametrize(
    ("steps", "error", "message"),
    [
        ([FIRST, Break()], ConnectionFailed, ".+"),
        ([Break()], ConnectionFailed, ".+"),
        ([FIRST], ProtocolError, "the stream ended before its last response"),
        ([], ProtocolError, "ended before its last response|answered with"),
        ([fake_response("a", [1], "why")], ProtocolError, "finish_reason must be one of"),
        ([FIRST, Response(error="request 'r': the engine has failed (X)", final=True)], ServerError, "has failed"),
        ([FIRST, Response(error="the server is shutting down", final=True)], Unavailable, "shutting down"),
        ([FIRST, Response(error="the client cancelled the request", final=True)], Cancelled, "cancelled the request"),
        ([FULL], QueueFull, "the waiting queue is full: 1 of 1 requests wait"),
        ([Status("INTERNAL", 500, "boom")], ServerError, "boom"),
        ([Status("UNAUTHENTICATED", 401, "who are you?", "text/html")], InvalidRequest, "who are you"),
        ([Status("UNIMPLEMENTED", 200, "hello", "text/html")], ProtocolError, "hello|answered with text/html"),
        ([FIRST, Status("CANCELLED", 200)], Cancelled, ".+"),
    ],
)
def test_each_failure_has_its_exception(
    wire: Backend, protocol: str, kind: str, steps: list[Step], error: type[SwiftClientError], message: str
) -> None:
    if steps and steps[-1] == Status("CANCELLED", 200):
        only(protocol, "grpc")
    wire.script([steps])
    stream = wire.driver(kind, retry=ONCE).stream(**DOOR, request_id="r")
    with pytest.raises(error, match=message) as caught, stream:
        list(stream)
    assert type(caught.value) is error and caught.value.request_id == "r"
    assert str(caught.value).endswith("(request r)")
    assert stream.text == ("a" if steps and steps[0] is FIRST else "")
    with pytest.raises(error):
        stream.result()
    assert list(stream) == []


@pytest.mark.parametrize(
    "data",
    [b"data: {nope\n\n", b"data: [1]\n\n", b"data: \xff\n\n", b"data: {}\n\n", b'{"error": "x"}\n\n', b"<html>\n\n"],
)
def test_events_that_are_none(wire: Backend, protocol: str, kind: str, data: bytes) -> None:
    """Over gRPC: a tensor that is not what it says."""
    wire.script([[FIRST, Raw(data), LAST]] if data != b"<html>\n\n" else [[FIRST, Raw(data)]])
    stream = wire.driver(kind).stream(**DOOR)
    if protocol == "http" and data == b"data: {}\n\n":
        list(stream)  # an empty response that is not the last
        return
    with pytest.raises(ProtocolError), stream:
        list(stream)
    assert stream.text == "a"


@pytest.mark.parametrize("final", [[fake_response("b", [2], "stop", final=False), Response(final=True)], [LAST]])
def test_final_on_the_last_data_and_by_itself(wire: Backend, kind: str, final: list[Step]) -> None:
    wire.script([[FIRST, *final]])
    with wire.driver(kind).stream(**DOOR) as stream:
        chunks = list(stream)
    assert ([chunk.text for chunk in chunks], stream.result().finish_reason) == (["a", "b"], "stop")
    assert wire.behaviour is not None and within(1, lambda: wire.busy() == 0) < 1
    assert (wire.behaviour.stops, wire.behaviour.cancelled_calls) == ([], 0)


def test_a_call_that_ends_slowly_keeps_nobody(wire: Backend, kind: str) -> None:
    """The last chunk is there at once; the end of the call is waited for, but not for ever."""
    wire.script([[FIRST, LAST, Pause(20)]])
    started = time.monotonic()
    assert wire.driver(kind).generate(**DOOR).text == "ab"
    assert time.monotonic() - started < 4


@pytest.mark.parametrize(
    ("steps", "timeout", "limit", "deaf"),
    [
        ([Pause(20), LAST], Timeout(first_token=0.3), "first_token", False),
        ([FIRST, Pause(20), LAST], Timeout(first_token=5, between_tokens=0.3), "between_tokens", False),
        ([FIRST, Pause(20), LAST], Timeout(first_token=5, between_tokens=0.3), "between_tokens", True),
        ([FIRST, *[Pause(0.05), FIRST] * 400, LAST], Timeout(total=0.3), "total", False),
        ([Pause(20), LAST], 0.3, "total", False),
    ],
)
def test_deadlines(wire: Backend, kind: str, steps: list[Step], timeout: Any, limit: str, deaf: bool) -> None:
    """The request is withdrawn: by `stop`, and where nobody hears that, by cancelling the call."""
    assert wire.behaviour is not None
    wire.behaviour.deaf = deaf
    wire.script([steps])
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"0\.3 s \(request r\)") as caught:
        wire.driver(kind).generate(**DOOR, timeout=timeout, request_id="r")
    assert caught.value.limit == limit
    assert 0.28 < time.monotonic() - started < (3 if deaf else 1)
    assert wire.behaviour.stops[0] == "r"


def test_a_slow_first_token_within_its_limit_is_waited_for(wire: Backend, kind: str) -> None:
    wire.script([[Pause(0.5), FIRST, Pause(0.2), LAST]])
    result = wire.driver(kind).generate(**DOOR, timeout=Timeout(first_token=3, between_tokens=3, total=5))
    assert result.text == "ab" and 0.5 <= result.timing.first_token_seconds < result.timing.seconds - 0.19


def test_no_limits_at_all(wire: Backend, kind: str) -> None:
    wire.script([[FIRST, LAST]])
    assert wire.driver(kind).generate(**DOOR, timeout=None).text == "ab"


@pytest.mark.parametrize(
    "failure", [[FULL], [Break()], [Status("UNAVAILABLE", 503, "x")], [Response(error="the server is shutting down")]]
)
def test_what_is_tried_again_before_the_first_token(wire: Backend, kind: str, failure: list[Step]) -> None:
    wire.script([failure, failure, [FIRST, LAST]])
    assert wire.behaviour is not None
    result = wire.driver(kind, retry=QUICK).generate(**DOOR)
    assert result.text == "ab"
    assert [request["id"] for request in wire.behaviour.requests] == [result.request_id] * 3


def test_nothing_is_tried_again_after_it(wire: Backend, kind: str) -> None:
    wire.script([[FIRST, Break()], [FIRST, LAST]])
    assert wire.behaviour is not None
    with pytest.raises(ConnectionFailed):
        wire.driver(kind, retry=QUICK).generate(**DOOR)
    assert len(wire.behaviour.requests) == 1


def test_trying_again_ends(wire: Backend, kind: str) -> None:
    wire.script([[FULL]])
    assert wire.behaviour is not None
    with pytest.raises(QueueFull):
        wire.driver(kind, retry=QUICK).generate(**DOOR)
    assert len(wire.behaviour.requests) == 3
    with pytest.raises((QueueFull, DeadlineExceeded)):  # the limit may be over within an attempt, or between two
        wire.driver(kind, retry=Retry(limit=100, delay=0.2)).generate(**DOOR, timeout=0.5)
    assert len(wire.behaviour.requests) < 9


@pytest.fixture
def dead_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port: int = one.getsockname()[1]
    return port


def test_a_refused_connection(protocol: str, kind: str, dead_port: int) -> None:
    with Driver(kind, f"{protocol}://localhost:{dead_port}", retry=QUICK) as driver:
        started = time.monotonic()
        with pytest.raises(ConnectionFailed, match=r"\(request r\)"):
            driver.generate("a", request_id="r")
        for question in ("health", "metadata", "metrics"):
            with pytest.raises(ConnectionFailed):
                driver.call(question)
        with pytest.raises(ConnectionFailed, match="request x"):
            driver.call("cancel", "x")
        assert time.monotonic() - started < 3


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Takes connections, and never says a word."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        one.listen(16)
        yield one.getsockname()[1]


def test_a_server_that_never_answers(protocol: str, kind: str, silent_port: int) -> None:
    """Over gRPC a connection is one only when both sides have spoken."""
    timeout = Timeout(connect=0.3, first_token=0.6)
    with Driver(kind, f"{protocol}://localhost:{silent_port}", retry=ONCE, timeout=timeout) as driver:
        started = time.monotonic()
        with pytest.raises(ConnectionFailed if protocol == "grpc" else DeadlineExceeded):
            driver.generate("a")
        assert 0.2 < time.monotonic() - started < 4


def test_a_server_that_comes_back_is_found(kind: str, protocol: str, wire: Backend, dead_port: int) -> None:
    """The first attempt finds nobody; whoever listens by the time of the next is asked."""
    port = int(wire.url.rpartition(":")[2])
    relay = _Relay(dead_port, port)
    timer = threading.Timer(0.3, relay.start)
    timer.start()
    with Driver(kind, f"{protocol}://localhost:{dead_port}", retry=Retry(limit=8, delay=0.2)) as driver:
        assert driver.generate("a").text == "a"
    timer.join()
    relay.close()


class _Relay(threading.Thread):
    """From one port to another, for one connection."""

    def __init__(self, port: int, to: int) -> None:
        super().__init__(daemon=True)
        self._port, self._to = port, to
        self._sockets: list[socket.socket] = []

    def run(self) -> None:
        listener = socket.create_server(("localhost", self._port))
        self._sockets.append(listener)
        while True:
            try:
                ours, _ = listener.accept()
            except OSError:
                return
            theirs = socket.create_connection(("localhost", self._to))
            self._sockets += [ours, theirs]
            for one, other in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=_copy, args=(one, other), daemon=True).start()

    def close(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.join(5)


def _copy(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
    except OSError:
        return
