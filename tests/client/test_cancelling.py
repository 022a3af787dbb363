"""Every way to withdraw a request, on every backend: its place is free within a second, through the ensemble too."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pytest
from swift_client import AsyncSwiftClient, Cancelled, DeadlineExceeded, Pause, SwiftClient, Timeout, fake_response

from tests.client.conftest import DECODER, DOOR, LASTING, Backend, lasting_answer
from tests.client.drivers import DrivenStream
from tests.client.wire_servers import Behaviour, within

pytestmark = pytest.mark.timeout(120)


def known_at_stop(behaviour: Behaviour, number: int) -> list[str]:
    """Have the server know a request only from so many stops on; the list gets the id of each stop."""
    play, asked = behaviour.play, list[str]()

    def late(model: str, request_id: str, inputs: Any) -> Any:
        if inputs.get("stop"):
            asked.append(request_id)
            if len(asked) < number:
                return iter([fake_response(cancelled=False)])
        return play(model, request_id, inputs)

    behaviour.play = late  # type: ignore[method-assign]
    return asked


BOTH = pytest.mark.parametrize("prompt", [DOOR, DECODER], ids=["door", "decoder"])


@BOTH
@pytest.mark.parametrize("chunks", [0, 3])
def test_cancelling_the_task(backend: Backend, prompt: dict[str, Any], chunks: int) -> None:
    """While it waits for its first chunk, or in the middle."""
    backend.script([lasting_answer()] if chunks else [[Pause(60)]])

    async def read(client: AsyncSwiftClient, seen: list[object]) -> None:
        async with client.stream(**prompt, **LASTING) as stream:
            async for chunk in stream:
                seen.append(chunk)

    async def main() -> float:
        async with AsyncSwiftClient(backend.url, **backend.options) as client:
            seen: list[object] = []
            task = asyncio.create_task(read(client, seen))
            await asyncio.to_thread(within, 20, lambda: len(seen) >= chunks and backend.busy() == 1)
            task.cancel()
            started = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(within, 1, lambda: backend.busy() == 0)
            assert len(asyncio.all_tasks()) == 1
            return time.monotonic() - started

    assert asyncio.run(main()) < 1


@BOTH
def test_cancelling_a_task_that_has_no_block(backend: Backend, prompt: dict[str, Any]) -> None:
    backend.script([lasting_answer()])

    async def main() -> None:
        async with AsyncSwiftClient(backend.url, **backend.options) as client:
            for _ in range(2):
                task = asyncio.create_task(client.generate(**prompt, **LASTING))
                await asyncio.to_thread(within, 20, lambda: backend.busy() == 1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.to_thread(within, 1, lambda: backend.busy() == 0)

    asyncio.run(main())


@BOTH
def test_a_limit_that_is_over(backend: Backend, kind: str, prompt: dict[str, Any]) -> None:
    backend.script([lasting_answer()])
    with pytest.raises(DeadlineExceeded, match=r"not complete after 0\.4 s"):
        backend.driver(kind).generate(**prompt, **LASTING, timeout=Timeout(total=0.4))
    assert within(1, lambda: backend.busy() == 0) < 1


@BOTH
def test_an_exception_in_the_block(backend: Backend, kind: str, prompt: dict[str, Any]) -> None:
    backend.script([lasting_answer()])
    with pytest.raises(ZeroDivisionError), backend.driver(kind).stream(**prompt, **LASTING) as stream:
        next(stream)
        _ = 1 / 0
    assert within(1, lambda: backend.busy() == 0) < 1
    assert stream.finish_reason == "cancelled"


@pytest.mark.parametrize("closes", ["stream", "client"])
def test_closing_while_another_thread_waits(backend: Backend, kind: str, closes: str) -> None:
    backend.script([[fake_response("a", [1]), Pause(60)]] if backend.behaviour else [lasting_answer()])
    driver = backend.driver(kind)
    stream = driver.stream(**DOOR, **LASTING)
    caught: list[BaseException] = []
    started = threading.Event()

    def read(stream: DrivenStream) -> None:
        try:
            for _ in stream:
                started.set()
        except Cancelled as error:
            caught.append(error)

    thread = threading.Thread(target=read, args=(stream,))
    thread.start()
    assert started.wait(20)
    (stream if closes == "stream" else driver).close()
    assert within(1, lambda: backend.busy() == 0) < 1
    thread.join(5)
    assert not thread.is_alive()
    assert [str(error) for error in caught] == [f"the stream was closed (request {stream.request_id})"]


def test_ctrl_c_while_waiting(backend: Backend) -> None:
    """Python raises it in the middle of a wait, which cannot be begun again: the call is given up."""
    backend.script([[fake_response("a", [1]), Pause(60)]] if backend.behaviour else [lasting_answer()])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    client = SwiftClient(backend.url, **backend.options)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), client.stream(**DOOR, **LASTING) as stream:
        timer.start()
        for _ in stream:
            pass
    timer.join()
    assert within(1, lambda: backend.busy() == 0) < 1
    assert (stream.finish_reason, stream.result().text[:1]) == ("cancelled", stream.text[:1])
    client.close()


def test_the_server_hears_of_it_by_stop_and_the_call_ends_properly(wire: Backend, kind: str) -> None:
    """Triton 2.51 keeps the request of a call for ever that is cancelled at the wrong moment."""
    assert wire.behaviour is not None
    wire.script([lasting_answer()])
    with wire.driver(kind).stream(**DOOR, request_id="r") as stream:
        next(stream)
    assert (wire.behaviour.stops, wire.behaviour.cancelled_calls) == (["r"], 0)


def test_where_stop_is_not_heard_the_call_is_cancelled(wire: Backend, kind: str) -> None:
    assert wire.behaviour is not None
    behaviour = wire.behaviour
    behaviour.deaf = True
    wire.script([lasting_answer(3000, 0.01)])
    started = time.monotonic()
    with wire.driver(kind).stream(**DOOR, request_id="r") as stream:
        next(stream)
    assert time.monotonic() - started < 4
    assert within(1, lambda: behaviour.cancelled_calls == 1) < 1
    assert behaviour.stops == ["r"]


def test_a_request_that_is_still_with_the_tokenizer_is_stopped_again(wire: Backend, kind: str) -> None:
    assert wire.behaviour is not None
    asked = known_at_stop(wire.behaviour, 3)
    wire.script([[Pause(60)]])
    with pytest.raises(DeadlineExceeded):
        wire.driver(kind).generate(**DOOR, timeout=0.2)
    assert len(asked) == 3
    assert within(1, lambda: wire.busy() == 0) < 1


def test_a_slow_reader_holds_the_server_back(wire: Backend, kind: str) -> None:
    """What it does not read stays with the server, but for what the connection and a few places hold."""
    assert wire.behaviour is not None
    large = fake_response("x" * 50_000, [1])
    wire.script([[large] * 4000 + [fake_response("", [], "stop")]])
    with wire.driver(kind).stream(**DOOR) as stream:
        next(stream)
        time.sleep(0.5)
        sent = wire.behaviour.sent
        assert sent < 400
        time.sleep(0.3)
        assert wire.behaviour.sent == sent


def test_a_request_that_was_given_up_is_stopped_when_it_answers(wire: Backend, kind: str) -> None:
    """Nobody knew it when it was given up; the call is left open, and ends properly in the background."""
    assert wire.behaviour is not None
    behaviour = wire.behaviour
    asked = known_at_stop(behaviour, 5)
    wire.script([[Pause(1), *lasting_answer()]])
    driver = wire.driver(kind)
    with pytest.raises(DeadlineExceeded):
        driver.generate(**DOOR, timeout=0.1, request_id="r")
    assert wire.busy() == 1 and len(asked) == 4
    within(3, lambda: wire.busy() == 0)
    assert (asked, behaviour.stops, behaviour.cancelled_calls) == (["r"] * 5, ["r"], 0)


def test_closing_while_another_thread_waits_for_a_first_chunk_that_never_comes(wire: Backend) -> None:
    assert wire.behaviour is not None
    wire.behaviour.deaf = True
    wire.script([[Pause(30)]])
    client = SwiftClient(wire.url, timeout=Timeout.unlimited(), **wire.options)
    stream = client.stream(**DOOR)
    caught: list[BaseException] = []

    def read() -> None:
        try:
            next(stream)
        except Cancelled as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    within(5, lambda: wire.busy() == 1)
    started = time.monotonic()
    client.close()
    thread.join(5)
    assert time.monotonic() - started < 8
    assert [str(error) for error in caught] == [f"the stream was closed (request {stream.request_id})"]
    assert not [one for one in threading.enumerate() if one.name.startswith("swift-client")]
    wire.behaviour.deaf = False
    for stopped in list(wire.behaviour._stopped.values()):
        stopped.set()
