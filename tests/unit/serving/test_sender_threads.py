"""A send that blocks holds up nobody else; threads come and go as they are needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import Event, Thread, current_thread

import pytest

from swift_backend.serving import sender_threads
from swift_backend.serving.sender_threads import PATIENCE_SECONDS, SenderThreads

Job = Callable[[], object]


class Office:
    """Jobs in a queue, worked off by the threads under test; None ends them all."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.workers: list[Thread] = []
        self.doors: list[Event] = []
        self.threads = SenderThreads(self.step)

    def step(self) -> bool:
        try:
            job = self.jobs.get(timeout=0.01)
        except Empty:
            return True
        if job is None:
            self.jobs.put(None)
            return False
        with self.threads.sending():
            job()
        self.workers.append(current_thread())
        return True

    def block(self) -> Event:
        """Queue a job that waits; returns what lets it go on, once it has begun."""
        begun, door = Event(), Event()
        self.doors.append(door)
        self.jobs.put(lambda: (begun.set(), door.wait(10)))
        assert begun.wait(5)
        return door

    def done(self, timeout: float = 5) -> bool:
        """Whether a job that is queued now gets done."""
        happened = Event()
        self.jobs.put(happened.set)
        return happened.wait(timeout)

    @property
    def size(self) -> int:
        return len(self.threads._alive())


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    made.threads.start()
    yield made
    for door in made.doors:
        door.set()
    made.threads.end()
    made.jobs.put(None)
    assert made.threads.join(5)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_threads, "PATIENCE_SECONDS", 0.05)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def test_one_thread_is_enough_for_sends_that_do_not_block(office: Office) -> None:
    assert all([office.done() for _ in range(200)])
    assert len(set(office.workers)) == 1
    assert office.size == 1


def test_another_thread_takes_over_once_patience_is_over(office: Office) -> None:
    office.block()
    began = time.monotonic()
    assert office.done()
    assert PATIENCE_SECONDS * 0.9 < time.monotonic() - began < 4 * PATIENCE_SECONDS
    assert office.size == 2


def test_however_many_are_stuck_one_is_left(office: Office, hasty: None) -> None:
    for _ in range(4):
        office.block()
    assert office.done()
    assert office.size == 5


def test_a_thread_that_idles_is_replacement_enough(office: Office, hasty: None) -> None:
    office.block()
    assert office.done()
    time.sleep(0.3)
    assert office.size == 2


def test_threads_that_come_back_leave_and_the_last_stays(office: Office, hasty: None) -> None:
    doors = [office.block() for _ in range(3)]
    assert office.done()
    for door in doors:
        door.set()
    eventually(lambda: office.size == 1)
    time.sleep(0.1)
    assert (office.size, office.done()) == (1, True)


def test_join_waits_for_a_send_but_not_for_ever(office: Office, hasty: None) -> None:
    door = office.block()
    office.threads.end()
    office.jobs.put(None)
    began = time.monotonic()
    assert office.threads.join(0.3) is False
    assert 0.25 < time.monotonic() - began < 1.5
    door.set()
    assert office.threads.join(5) is True
    assert office.size == 0
    eventually(lambda: not office.threads._watch.is_alive())


def test_what_was_never_started_needs_no_time_to_end() -> None:
    began = time.monotonic()
    assert SenderThreads(lambda: True).join(5) is True
    assert time.monotonic() - began < 1


def test_nobody_is_spare_at_the_end(office: Office, hasty: None) -> None:
    """Whoever comes back may bring work that only itself sees, behind the backs of threads that are about to end."""
    door = office.block()
    assert office.done()
    office.threads.end()
    door.set()
    eventually(lambda: len(office.workers) == 2)
    time.sleep(0.1)
    assert office.size == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_replaced_for_good(office: Office, hasty: None) -> None:
    def die() -> None:
        raise RuntimeError("a bug")

    office.jobs.put(die)
    eventually(lambda: office.size == 0)
    assert all([office.done() for _ in range(20)])
    assert len(set(office.workers)) == 1
