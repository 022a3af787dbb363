"""However many streams there were, and are at a time: threads, sockets, tasks and memory stay flat."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil
import pytest
from swift_client import AsyncSwiftClient, Completion, SwiftClient

from tests.client.conftest import Backend
from tests.client.wire_servers import within

pytestmark = pytest.mark.timeout(300)

SHORT = {"max_tokens": 3, "ignore_eos": True, "speculation": "off"}
LONGER = {"max_tokens": 12, "ignore_eos": True, "speculation": "off"}
STREAMS, AT_A_TIME = 500, 64


@dataclass(frozen=True)
class Held:
    """What this process holds now."""

    threads: int
    sockets: int
    memory: int


def held() -> Held:
    gc.collect()
    process = psutil.Process()
    return Held(len(threads()), len(process.net_connections("tcp")), process.memory_info().rss)


def threads() -> list[str]:
    """All but those of a server in this process."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if not name.startswith("wire") and "process_request" not in name]


def check_flat(before: Held, memory: int) -> None:
    """Threads of calls that have ended, and the other sides of closed sockets, take a moment to go."""
    within(5, lambda: held().threads <= before.threads and held().sockets <= before.sockets)
    assert held().memory - before.memory < memory


def one_after_another(backend: Backend, kind: str, streams: int) -> None:
    driver = backend.driver(kind)

    def some(count: int) -> set[str]:
        return {driver.generate("w5 w6 w7", **SHORT).text for _ in range(count)}

    texts = some(streams // 5)
    before = held()
    assert some(streams - streams // 5) == texts and len(texts) == 1
    check_flat(before, 4 * 2**20)
    assert driver.loop is None or driver.loop.tasks() == 0


def ask_at_once(backend: Backend, kind: str) -> Callable[[], list[Completion]]:
    """So many requests at a time on one client; closed afterwards."""

    def with_threads() -> list[Completion]:
        with SwiftClient(backend.url, **backend.options) as client, ThreadPoolExecutor(AT_A_TIME) as pool:
            return list(pool.map(lambda _: client.generate("w5 w6 w7", **LONGER), range(AT_A_TIME)))

    async def with_tasks() -> list[Completion]:
        async with AsyncSwiftClient(backend.url, **backend.options) as client:
            wanted = [client.generate("w5 w6 w7", **LONGER) for _ in range(AT_A_TIME)]
            answers = await asyncio.gather(*wanted)
        assert len(asyncio.all_tasks()) == 1
        return answers

    return with_threads if kind == "sync" else lambda: asyncio.run(with_tasks())


def many_at_a_time(backend: Backend, kind: str) -> None:
    at_once = ask_at_once(backend, kind)
    at_once()
    before = held()
    for _ in range(2):
        answers = at_once()
        assert len({answer.text for answer in answers}) == 1
        assert len({answer.request_id for answer in answers}) == AT_A_TIME
        assert backend.busy() == 0
    check_flat(before, 12 * 2**20)


def test_one_after_another(wire: Backend, kind: str) -> None:
    one_after_another(wire, kind, 60)


def test_many_at_a_time(wire: Backend, kind: str) -> None:
    many_at_a_time(wire, kind)


@pytest.mark.server
@pytest.mark.parametrize("backend", ["real"], indirect=True)
def test_so_many_one_after_another_on_a_real_server(backend: Backend, protocol: str, kind: str) -> None:
    """Each protocol and each kind of client once with all of them; the two other pairs with some."""
    whole = (protocol, kind) in {("grpc", "sync"), ("http", "async")}
    one_after_another(backend, kind, STREAMS if whole else STREAMS // 4)


@pytest.mark.server
@pytest.mark.parametrize("backend", ["real"], indirect=True)
def test_so_many_at_a_time_on_a_real_server(backend: Backend, kind: str) -> None:
    many_at_a_time(backend, kind)


@pytest.mark.parametrize("ends", ["read", "left", "failed"])
def test_a_closed_client_leaves_nothing(wire: Backend, protocol: str, kind: str, ends: str) -> None:
    def use() -> None:
        driver = wire.driver(kind)
        with driver.stream("x") as stream:
            next(stream)
            if ends == "read":
                stream.result()
            elif ends == "failed":
                with pytest.raises(TypeError):
                    _ = stream.text + 1
        driver.call("metrics")
        driver.close()

    use()
    before = held()
    use()
    check_flat(before, 2 * 2**20)
    assert not [name for name in threads() if name.startswith(("swift-client", "test-loop"))]
    del wire.drivers[:]
