"""A reader who lags pauses its own request, and whatever the threads do, every request gets one FINAL."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Event, Lock, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swift_backend.errors import EngineFailure
from swift_backend.sequence import Output
from swift_backend.serving import sender_threads
from swift_backend.serving.reply import Reply
from swift_backend.serving.responder import ABANDONED_SECONDS, MOST_UNSENT, POLL_SECONDS, Responder


class Engine:
    """Remembers what it is asked for."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.paused: list[tuple[str, bool]] = []

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def pause(self, request_id: str, paused: bool) -> None:
        self.paused.append((request_id, paused))

    def holds(self, request_id: str) -> bool:
        return dict(self.paused).get(request_id, False)


class Room:
    """A responder, with clients whose sends can be held up."""

    def __init__(self, triton: Any) -> None:
        self.triton, self.engine, self.log = triton, Engine(), []  # type: ignore[var-annotated]
        self.responder = Responder(lambda: self.engine, self.log.append)
        self.doors: list[Event] = []

    def open(self, request_id: str = "1", stream: bool = True) -> Any:
        sender = self.triton.sender()
        self.responder.open(Reply(request_id, sender, client_id=request_id, stream=stream))
        return sender

    def hold(self, sender: Any) -> Event:
        """Sends to this client wait until the event is set."""
        door, send = Event(), sender.send
        self.doors.append(door)

        def slow(*what: Any, **more: Any) -> None:
            assert door.wait(10)
            send(*what, **more)

        sender.send = slow
        return door

    def say(self, *token_ids: int, request_id: str = "1", end: str = "") -> None:
        for token in token_ids:
            self.responder.on_output(Output(request_id, f"{token} ", (token,)))
        if end:
            self.responder.on_output(Output(request_id, finish_reason=end))


@pytest.fixture
def room(triton: Any) -> Room:
    """Nothing is sent but by responder.step."""
    return Room(triton)


@pytest.fixture
def busy(triton: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    """With its threads."""
    monkeypatch.setattr(sender_threads, "PATIENCE_SECONDS", 0.05)
    made = Room(triton)
    made.responder.start()
    yield made
    for door in made.doors:
        door.set()
    assert made.responder.close(5)
    assert made.log == []


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def ids(sender: Any) -> list[int]:
    return [token for table in sender.tables for token in table.get("output_ids", [])]


def test_a_reader_that_lags_is_paused_once_and_resumes_once(room: Room) -> None:
    room.open()
    room.say(*range(MOST_UNSENT))
    assert room.engine.paused == []
    room.say(*range(MOST_UNSENT, MOST_UNSENT + 5))
    assert room.engine.paused == [("1", True)]
    room.responder.step(0)
    assert room.engine.paused == [("1", True), ("1", False)]
    room.say(7, end="length")
    room.responder.step(0)
    assert room.engine.paused == [("1", True), ("1", False)]


def test_it_may_lag_again(room: Room) -> None:
    sender = room.open()
    for _ in range(3):
        room.say(*range(MOST_UNSENT + 1))
        room.responder.step(0)
    assert room.engine.paused == [("1", True), ("1", False)] * 3
    room.say(end="stop")
    room.responder.step(0)
    assert ids(sender) == [*range(MOST_UNSENT + 1)] * 3


def test_a_request_that_is_over_is_not_paused(room: Room) -> None:
    room.open()
    room.say(*range(MOST_UNSENT), end="length")
    room.responder.step(0)
    assert room.engine.paused == []


@pytest.mark.parametrize(("behind", "resumed_after"), [(MOST_UNSENT // 2, 1), (MOST_UNSENT // 2 + 1, 2)])
def test_it_resumes_once_it_has_caught_up(room: Room, behind: int, resumed_after: int) -> None:
    """What arrives while a send is under way counts."""
    sender = room.open()
    send, resumed = sender.send, []

    def slow(*what: Any, **more: Any) -> None:
        resumed.append(("1", False) in room.engine.paused)
        if len(resumed) == 1:
            room.say(*range(100, 100 + behind))
        send(*what, **more)

    sender.send = slow
    room.say(*range(MOST_UNSENT + 1))
    room.responder.step(0)
    room.responder.step(0)
    room.say(end="stop")
    room.responder.step(0)
    assert resumed.index(True) == resumed_after
    assert room.engine.paused == [("1", True), ("1", False)]


def test_the_last_word_about_a_pause_is_the_latest(busy: Room) -> None:
    """The engine's thread notices the lag, loses the processor, and the reader has caught up before it goes on."""
    sender, pause = busy.open(), busy.engine.pause

    def late(request_id: str, paused: bool) -> None:
        if paused:
            time.sleep(0.2)
        pause(request_id, paused)

    busy.engine.pause = late  # type: ignore[method-assign]
    door = busy.hold(sender)
    busy.say(0)
    Thread(target=lambda: (time.sleep(0.1), door.set())).start()
    busy.say(*range(1, MOST_UNSENT + 2))
    eventually(lambda: ids(sender) == [*range(MOST_UNSENT + 2)])
    eventually(lambda: len(busy.engine.paused) == 2)
    assert busy.engine.paused == [("1", True), ("1", False)]
    busy.say(end="stop")


def test_a_blocked_reader_holds_up_nobody_else(busy: Room) -> None:
    blocked, other = busy.open("1"), busy.open("2")
    door = busy.hold(blocked)
    busy.say(0)
    for token in range(50):
        busy.say(token, request_id="1")
        busy.say(token, request_id="2")
        eventually(lambda token=token: ids(other)[-1:] == [token])
    busy.say(request_id="2", end="stop")
    assert other.done.wait(5)
    assert (ids(other), ids(blocked)) == ([*range(50)], [])
    assert busy.engine.paused == [("1", True)]
    door.set()
    eventually(lambda: ids(blocked) == [0, *range(50)])
    busy.say(end="stop", request_id="1")


def test_a_reader_who_never_comes_back_loses_its_place(triton: Any) -> None:
    """Its client may be there, asleep, without a deadline; others wait for the cache slots that it holds."""
    room, now = Room(triton), 100.0
    room.responder = Responder(lambda: room.engine, room.log.append, lambda: now)
    blocked = room.open("1")
    room.open("2")
    room.say(*range(MOST_UNSENT + 1), request_id="1")
    room.say(*range(MOST_UNSENT), request_id="2")
    for reply in room.responder._replies():
        reply.owned = True  # by a thread whose send does not return
    now += ABANDONED_SECONDS - 1
    room.responder._poll_clients()
    assert room.engine.cancelled == []
    now += 1
    room.responder._poll_clients()
    room.responder._poll_clients()
    assert room.engine.cancelled == ["1"]
    assert room.log == ["request '1': cancelled, nobody has read for 300 s"]
    assert blocked.responses == []
    for name, reply in room.responder._open.copy().items():
        room.say(request_id=name, end="cancelled")
        room.responder._disown(reply)
    room.responder.step(wait=0)


def test_a_blocked_reader_costs_memory_for_a_few_outputs_only(busy: Room) -> None:
    """The engine here, like the real one, does not go on with a request that is paused."""
    door = busy.hold(sender := busy.open())
    busy.say(0)
    time.sleep(0.05)
    said = 1
    for token in range(1, 1000):
        if not busy.engine.holds("1"):
            busy.say(token)
            said += 1
    assert said == MOST_UNSENT + 2
    door.set()
    eventually(lambda: not busy.engine.holds("1"))
    assert ids(sender) == [*range(said)]
    busy.say(end="stop")


def test_outputs_of_one_reply_stay_in_order_whoever_sends_them(busy: Room) -> None:
    """Each send is slow enough for another thread to take over in between."""
    sender = busy.open()
    send = sender.send
    sender.send = lambda *what, **more: (time.sleep(0.06), send(*what, **more))
    others = [busy.open(name) for name in "234"]
    for token in range(8):
        for name in "1234":
            busy.say(token, request_id=name)
        time.sleep(0.03)
    for name in "1234":
        busy.say(request_id=name, end="stop")
    assert sender.done.wait(5) and all(other.done.wait(5) for other in others)
    assert [ids(one) for one in (sender, *others)] == [[*range(8)]] * 4


def test_close_reaches_a_client_that_another_thread_looks_at(busy: Room) -> None:
    """That thread comes back with the last word in its hands, when the others have left already."""
    blocked, polled = busy.open("1"), busy.open("2", stream=False)
    door, asked, answered = busy.hold(blocked), Event(), Event()

    def is_cancelled() -> bool:
        asked.set()
        return not answered.wait(10)

    busy.say(0)
    polled.is_cancelled = is_cancelled
    assert asked.wait(POLL_SECONDS + 5)
    closed: list[bool] = []
    closing = Thread(target=lambda: closed.append(busy.responder.close(5)))
    closing.start()
    door.set()
    assert blocked.done.wait(5)
    time.sleep(0.1)
    answered.set()
    closing.join(10)
    assert closed == [True]
    assert polled.tables == [{"error": "the server is shutting down", "code": "UNAVAILABLE"}]


def test_threads_know_of_the_end_before_it_is_queued(busy: Room) -> None:
    """Else one that comes back might count on another that has looked into the queue for the last time."""
    threads, queued = busy.responder._threads, []
    end = threads.end
    threads.end = lambda: (queued.append(busy.responder._ready.qsize()), end())  # type: ignore[assignment]
    assert busy.responder.close(5) is True
    assert queued == [0]


def test_close_gives_up_a_client_that_stays_blocked_and_ends_the_others(triton: Any) -> None:
    room = Room(triton)
    room.responder.start()
    blocked, other = room.open("1"), room.open("2")
    door = room.hold(blocked)
    room.say(0)
    time.sleep(0.05)
    began = time.monotonic()
    assert room.responder.close(1.0) is False
    assert 0.9 < time.monotonic() - began < 2
    assert other.tables == [{"error": "the server is shutting down", "code": "UNAVAILABLE"}]
    door.set()
    assert blocked.done.wait(5)
    assert blocked.tables[-1] == {"error": "the server is shutting down", "code": "UNAVAILABLE"}


class Play:
    """A few requests that an engine's thread, a stopping thread and a client's whim end in any order."""

    def __init__(self, triton: Any, streams: list[bool]) -> None:
        self.room = Room(triton)
        self.lock, self.said = Lock(), [0] * len(streams)
        self.ended: set[int] = set()
        self.senders = [self.room.open(str(number), stream) for number, stream in enumerate(streams)]
        self.room.responder.start()

    def act(self, action: tuple[str, int]) -> None:
        what, number = action[0], action[1] % len(self.senders)
        if what == "say":
            with self.lock:
                self.room.say(self.said[number], request_id=str(number))
                self.said[number] += 1
        elif what == "end":
            self.room.say(request_id=str(number), end="stop")
        elif what == "fail":
            self.room.responder.fail(str(number), EngineFailure("it broke"))
        elif what == "stop" and self.room.responder.stop(str(number)):
            self.room.say(request_id=str(number), end="cancelled")
        elif what == "leave":
            self.senders[number].cancelled = True
        elif what == "rest":
            time.sleep(0.0005)


ACTIONS = st.tuples(st.sampled_from(["say"] * 6 + ["end", "fail", "stop", "leave", "rest"]), st.integers(0, 3))


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns a thousand times as often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(usual)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    streams=st.lists(st.booleans(), min_size=1, max_size=4),
    scripts=st.lists(st.lists(ACTIONS, max_size=40), min_size=2, max_size=4),
    early=st.booleans(),
)
def test_every_request_ends_once_whatever_the_threads_do(
    triton: Any, restless: None, streams: list[bool], scripts: list[list[tuple[str, int]]], early: bool
) -> None:
    play = Play(triton, streams)
    threads = [Thread(target=lambda script=script: [play.act(action) for action in script]) for script in scripts]
    for thread in threads:
        thread.start()
    if not early:
        for thread in threads:
            thread.join()
    assert play.room.responder.close(5) is True
    for thread in threads:
        thread.join()
    assert play.room.log == []
    for sender, stream in zip(play.senders, streams, strict=True):
        assert sender.flags == [0] * (len(sender.flags) - 1) + [1]
        assert stream or len(sender.responses) == 1
        assert ids(sender) == [*range(len(ids(sender)))]
    assert play.room.responder._open == {}


def test_a_reply_gets_its_owner_and_its_place_in_the_queue_at_once(triton: Any) -> None:
    """In between, a thread that closes would find it neither free nor queued, and its client would wait for ever."""
    engine = SimpleNamespace(cancel=lambda name: None, pause=lambda name, on: None)
    responder, held = Responder(lambda: engine, print), []

    class Queue(SimpleQueue):
        def put(self, item: Any) -> None:
            held.append(responder._lock.locked())
            super().put(item)

    responder._ready = Queue()
    sender = triton.sender()
    talkative = sender.send

    def send(response: Any, flags: int = 0) -> None:
        talkative(response, flags)
        responder.on_output(Output("1", "b", (2,), finish_reason="stop"))

    sender.send = send
    responder.open(Reply("1", sender, stream=True))
    responder.on_output(Output("1", "a", (1,)))
    responder.step(0)
    assert (sender.flags, held) == ([0, 1], [True, True])
