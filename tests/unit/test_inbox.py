"""How other threads reach the engine."""

from __future__ import annotations

import threading

import pytest

from swift_backend.errors import Unavailable
from swift_backend.inbox import Inbox
from swift_backend.params import SamplingParams
from swift_backend.sequence import Request


def request(name: str) -> Request:
    return Request(name, [1], SamplingParams(), print)


def test_mail_is_taken_once_and_in_order() -> None:
    inbox = Inbox(10)
    for name in "abc":
        inbox.submit(request(name))
    inbox.cancel("b")
    inbox.pause("c", True)
    inbox.pause("a", True)
    inbox.pause("a", False)
    mail = inbox.take()
    assert [r.request_id for r in mail.requests] == ["a", "b", "c"]
    assert mail.cancelled == {"b"}
    assert mail.paused == {"c": True, "a": False}
    assert inbox.take() == ([], set(), {})


def test_what_the_engine_keeps_waiting_counts() -> None:
    inbox = Inbox(3)
    inbox.submit(request("a"))
    inbox.submit(request("b"))
    inbox.take()
    inbox.submit(request("c"))
    with pytest.raises(Unavailable, match="3 of 3"):
        inbox.submit(request("d"))
    inbox.take()
    inbox.note_standing(1, 5)  # it waits for cache slots: places are not what is short
    inbox.submit(request("e"))
    inbox.submit(request("f"))
    with pytest.raises(Unavailable, match="3 of 3"):
        inbox.submit(request("g"))


@pytest.mark.parametrize("places", [0, 1, 4])
def test_a_burst_may_fill_the_free_places_before_it_waits(places: int) -> None:
    """However many come between two steps: what the engine can take in at once does not wait."""
    inbox = Inbox(2, places)
    for number in range(places + 2):
        inbox.submit(request(str(number)))
    with pytest.raises(Unavailable, match="2 of 2"):
        inbox.submit(request("x"))
    inbox.take()
    with pytest.raises(Unavailable, match="2 of 2"):
        inbox.submit(request("y"))
    inbox.note_standing(0, 1)
    for number in range(3):
        inbox.submit(request(str(number)))
    with pytest.raises(Unavailable, match="2 of 2"):
        inbox.submit(request("z"))


def test_a_closed_box_refuses() -> None:
    inbox = Inbox(3)
    inbox.close()
    with pytest.raises(Unavailable, match="shutting down"):
        inbox.submit(request("a"))


WAKERS = [
    lambda box: box.submit(request("a")),
    lambda box: box.cancel("x"),
    lambda box: box.pause("x", False),
    lambda box: box.fail(ValueError()),
    Inbox.close,
]


@pytest.mark.parametrize("wake", WAKERS)
def test_waiting_ends_with_any_mail(wake: object) -> None:
    inbox = Inbox(3)
    waiter = threading.Thread(target=inbox.wait)
    waiter.start()
    assert waiter.is_alive()
    wake(inbox)  # type: ignore[operator]
    waiter.join(5)
    assert not waiter.is_alive()


def test_a_failure_is_raised_where_mail_is_taken_and_the_mail_stays() -> None:
    """Those who are in the box must be told, by an engine that has closed it."""
    inbox = Inbox(3)
    inbox.submit(request("a"))
    inbox.fail(ValueError("gone"))
    for _ in range(2):
        with pytest.raises(ValueError, match="gone"):
            inbox.take()
    inbox.close()
    assert [one.request_id for one in inbox.take().requests] == ["a"]


def test_waiting_ends_in_time() -> None:
    Inbox(1).wait(timeout=0.01)
