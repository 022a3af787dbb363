"""Instances of one model find each other's requests, and leave nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from swift_backend.serving.siblings import MOST_INSTANCES, Siblings, _user_of

ROOT = Path(__file__).parents[3]


class Instance:
    """One that has requests, by the clients' ids, and remembers what it was asked for."""

    def __init__(self, name: str, *requests: str) -> None:
        self.requests, self.asked = set(requests), []
        self.siblings = Siblings(name, self.stop)

    def stop(self, client_id: str) -> bool:
        self.asked.append(client_id)
        return client_id in self.requests


@pytest.fixture
def name() -> str:
    return f"test-{uuid.uuid4()}"


@pytest.fixture
def instance(name: str) -> Iterator[Callable[..., Instance]]:
    made: list[Instance] = []

    def make(*requests: str) -> Instance:
        made.append(Instance(name, *requests))
        return made[-1]

    yield make
    for one in made:
        one.siblings.close()


def test_each_finds_the_requests_of_the_others(instance: Callable[..., Instance]) -> None:
    first, second, third = instance("a"), instance("b", "ü" * 100), instance("c")
    assert [one.siblings.number for one in (first, second, third)] == [0, 1, 2]
    assert [first.siblings.stop(name) for name in ("b", "c", "ü" * 100)] == [True, True, True]
    assert third.siblings.stop("a") is True
    assert (first.asked, second.asked) == (["a"], ["b", "c", "ü" * 100, "a"])


def test_nobody_asks_itself_and_an_unknown_id_is_no_error(instance: Callable[..., Instance]) -> None:
    alone = instance("a")
    assert alone.siblings.stop("a") is False
    other = instance("b")
    assert [alone.siblings.stop(name) for name in ("a", "x", "")] == [False, False, False]
    assert (alone.asked, other.asked) == ([], ["a", "x", ""])


def test_all_are_asked_since_an_id_may_be_used_twice(instance: Callable[..., Instance]) -> None:
    first, *others = (instance("a") for _ in range(4))
    assert first.siblings.stop("a") is True
    assert [other.asked for other in others] == [["a"]] * 3


def test_other_models_are_not_asked(instance: Callable[..., Instance]) -> None:
    asking, stranger = instance(), Instance(f"test-{uuid.uuid4()}", "a")
    assert asking.siblings.stop("a") is False
    assert stranger.asked == []
    stranger.siblings.close()


def test_a_closed_one_is_not_heard_any_more_and_its_number_is_free(instance: Callable[..., Instance]) -> None:
    asking, leaving = instance(), instance("a")
    assert asking.siblings.stop("a") is True
    began = time.monotonic()
    leaving.siblings.close()
    assert time.monotonic() - began < 0.5 and not leaving.siblings._thread.is_alive()
    assert asking.siblings.stop("a") is False
    assert instance("a").siblings.number == 1
    assert asking.siblings.stop("a") is True


def test_there_is_a_limit(instance: Callable[..., Instance]) -> None:
    numbers = [instance().siblings.number for _ in range(MOST_INSTANCES)]
    assert numbers == list(range(64))
    with pytest.raises(OSError, match="more than 64 instances"):
        instance()


def test_a_long_name_is_no_problem() -> None:
    """An abstract address has room for 107 bytes; Triton's model names may be longer."""
    name = f"test-{uuid.uuid4()}-" + "x" * 300
    first, second = Instance(name, "a"), Instance(name)
    assert (second.siblings.number, second.siblings.stop("a")) == (1, True)
    first.siblings.close()
    second.siblings.close()


def test_nothing_is_left_in_the_file_system(
    instance: Callable[..., Instance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = instance("a"), instance()
    assert second.siblings.stop("a") is True
    bound = [one.siblings._listener.getsockname() for one in (first, second)]
    assert [address[:1] for address in bound] == [b"\0", b"\0"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("garbage", [b"\xff\xfe\x00", b"", b"a" * 65536, b"\0" * 100])
def test_garbage_does_no_harm(instance: Callable[..., Instance], garbage: bytes) -> None:
    asking, attacked = instance(), instance("a")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(attacked.siblings._listener.getsockname())
        stranger.send(garbage)
    assert asking.siblings.stop("a") is True


def test_one_who_connects_and_says_nothing_is_not_waited_for_long(instance: Callable[..., Instance]) -> None:
    asking, attacked = instance(), instance("a")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(attacked.siblings._listener.getsockname())
        asking.siblings.stop("a")
        began = time.monotonic()
        assert asking.siblings.stop("a") is True
        assert time.monotonic() - began < 1


def test_one_that_hangs_is_given_up(name: str, instance: Callable[..., Instance]) -> None:
    """Its connections are accepted by the kernel, and nobody answers."""
    asking, hanging, door = instance(), instance("a"), Event()
    hanging.siblings._stop = lambda client_id: door.wait(10)
    began = time.monotonic()
    assert asking.siblings.stop("a") is False
    assert 0.9 < time.monotonic() - began < 3
    door.set()


def test_only_processes_of_the_same_user_are_heard(
    instance: Callable[..., Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, asked = instance(), instance("a")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    assert (_user_of(ours), _user_of(theirs)) == (os.getuid(), os.getuid())
    ours.close()
    theirs.close()
    monkeypatch.setattr("swift_backend.serving.siblings._user_of", lambda peer: os.getuid() + 1)
    assert asking.siblings.stop("a") is False
    assert asked.asked == []


def test_across_processes(name: str, instance: Callable[..., Instance]) -> None:
    ours = instance("ours")
    program = f"""
from swift_backend.serving.siblings import Siblings
siblings = Siblings({name!r}, lambda client_id: client_id == "theirs")
print(siblings.number, siblings.stop("ours"), siblings.stop("nobody's"), flush=True)
input()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, **pipes) as other:
        assert other.stdout is not None and other.stdout.readline() == "1 True False\n"
        assert ours.asked == ["ours", "nobody's"]
        assert [ours.siblings.stop(name) for name in ("theirs", "ours")] == [True, False]
        other.communicate("\n", timeout=10)
    assert ours.siblings.stop("theirs") is False


def test_all_at_once(instance: Callable[..., Instance]) -> None:
    """Instances that ask each other at the same time do not wait for each other."""
    instances = [instance(str(number)) for number in range(4)]
    found: list[bool] = []
    asking = [
        Thread(target=lambda one=one, number=number: found.append(one.siblings.stop(str((number + 1) % 4))))
        for number, one in enumerate(instances * 10)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(10)
    assert found == [True] * 40
