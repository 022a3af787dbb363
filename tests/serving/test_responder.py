"""Answers go out in order, end with exactly one FINAL, and one client's trouble stays its own."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from swift_backend.errors import EngineFailure, InvalidRequest, SwiftError
from swift_backend.request_stats import RequestStats
from swift_backend.sequence import Output
from swift_backend.serving.reply import Reply
from swift_backend.serving.responder import POLL_SECONDS, Responder


class Scene:
    """A responder driven step by step, with a clock that stands still."""

    def __init__(self, triton: Any) -> None:
        self.triton = triton
        self.cancelled: list[str] = []
        self.log: list[str] = []
        self.now = 100.0
        self.paused: list[tuple[str, bool]] = []
        engine = SimpleNamespace(cancel=self.cancelled.append, pause=lambda name, on: self.paused.append((name, on)))
        self.responder = Responder(lambda: engine, self.log.append, lambda: self.now)

    def open(
        self,
        request_id: str = "1",
        client_id: str = "",
        stream: bool = False,
        prompt_text: Callable[[], str] | None = None,
        **sender: Any,
    ) -> Any:
        made = self.triton.sender(**sender)
        self.responder.open(Reply(request_id, made, client_id, stream=stream, prompt_text=prompt_text))
        return made

    def say(self, *outputs: Output) -> bool:
        for output in outputs:
            self.responder.on_output(output)
        return self.responder.step(wait=0)


@pytest.fixture
def scene(triton: Any) -> Scene:
    return Scene(triton)


def delta(text: str, *token_ids: int, end: str = "", request_id: str = "1", **rest: Any) -> Output:
    return Output(request_id, text, token_ids, finish_reason=end, num_prompt_tokens=4, **rest)


def failed(error: SwiftError, request_id: str = "1") -> Output:
    return Output(request_id, finish_reason="error", error=error)


def test_streaming_sends_one_response_per_output_and_final_rides_on_the_last(scene: Scene) -> None:
    sender = scene.open(stream=True)
    scene.say(delta("Hel", 1))
    scene.say(delta("lo", 2, 3))
    scene.say(delta("!", 4, end="length", stats=RequestStats(draft_tokens=4, accepted_draft_tokens=1)))
    assert sender.flags == [0, 0, 1]
    assert sender.texts() == ["Hel", "lo", "!"]
    assert [table["output_ids"] for table in sender.tables] == [[1], [2, 3], [4]]
    assert [table["finish_reason"] for table in sender.tables] == ["", "", "length"]
    assert [table["num_output_tokens"] for table in sender.tables] == [[1], [2], [1]]
    assert sender.tables[2]["acceptance_rate"] == [0.25]


def test_outputs_that_wait_together_travel_together(scene: Scene) -> None:
    sender = scene.open("1", stream=True)
    other = scene.open("2", stream=True)
    scene.say(
        delta("a", 1),
        delta("x", 7, request_id="2"),
        delta("b", 2),
        delta("", 3, end="stop"),
        delta("y", 8, request_id="2", end="stop"),
    )
    assert (sender.texts(), sender.flags, sender.tables[0]["output_ids"]) == (["ab"], [1], [1, 2, 3])
    assert (other.texts(), other.flags, other.tables[0]["output_ids"]) == (["xy"], [1], [7, 8])


def test_without_streaming_there_is_exactly_one_response(scene: Scene) -> None:
    sender = scene.open()
    scene.say(delta("Hel", 1))
    scene.say(delta("lo", 2, 3))
    assert sender.responses == []
    scene.say(delta("!", 4, end="stop"))
    assert (sender.texts(), sender.flags) == (["Hello!"], [1])
    assert sender.tables[0]["output_ids"] == [1, 2, 3, 4]
    assert sender.tables[0]["num_output_tokens"] == [4]
    assert sender.tables[0]["num_input_tokens"] == [4]


@pytest.mark.parametrize(("stream", "texts"), [(True, ["Say: a", "b"]), (False, ["Say: ab"])])
def test_the_prompt_comes_first_and_once(scene: Scene, stream: bool, texts: list[str]) -> None:
    sender = scene.open(stream=stream, prompt_text=lambda: "Say: ")
    scene.say(delta("a", 1))
    scene.say(delta("b", 2, end="stop"))
    assert sender.texts() == texts


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_is_one_response_with_its_code(scene: Scene, stream: bool) -> None:
    sender = scene.open(stream=stream)
    scene.say(failed(InvalidRequest("top_p", "top_p must be in (0, 1], got 2")))
    assert sender.tables == [{"error": "top_p must be in (0, 1], got 2", "code": "INVALID_ARG"}]
    assert sender.flags == [1]


def test_what_was_generated_before_an_error_still_goes_out_when_streaming(scene: Scene) -> None:
    sender, quiet = scene.open("1", stream=True, client_id="me"), scene.open("2")
    scene.say(delta("a", 1), delta("x", 1, request_id="2"), failed(EngineFailure("it broke")))
    scene.say(failed(EngineFailure("it broke"), request_id="2"))
    assert sender.tables[0]["text_output"] == "a" and sender.tables[0]["finish_reason"] == ""
    assert sender.tables[1:] == [{"error": "request 'me': it broke", "code": "INTERNAL"}]
    assert quiet.tables == [{"error": "request #2: it broke", "code": "INTERNAL"}]


def test_outputs_after_the_last_and_of_unknown_requests_are_dropped(scene: Scene) -> None:
    sender = scene.open(stream=True)
    scene.say(delta("a", 1, end="stop"))
    scene.say(delta("b", 2), delta("c", 3, end="stop"), delta("d", 4, request_id="unknown"))
    assert sender.texts() == ["a"]
    assert scene.log == []


def test_a_reply_that_is_closed_is_not_told_twice(scene: Scene) -> None:
    """A refused request can be opened again by the thread that refuses it, just after the engine's end closed it."""
    reply = Reply("1", scene.triton.sender())
    scene.responder.open(reply)
    scene.say(failed(EngineFailure("the engine has stopped")))
    scene.responder.open(reply)
    scene.say(failed(EngineFailure("the engine has stopped")))
    assert (reply.sender.flags, scene.log) == ([1], [])


def test_a_streaming_client_is_asked_about_once_per_chunk(scene: Scene) -> None:
    sender = scene.open(stream=True)
    scene.say(delta("a", 1), delta("b", 2))
    scene.say()
    scene.say(delta("c", 3))
    assert sender.polls == 2
    scene.say(delta("", end="stop"))
    assert sender.polls == 2


def test_a_silent_client_is_asked_about_now_and_then(scene: Scene) -> None:
    sender = scene.open()
    for _ in range(5):
        scene.say(delta("a", 1))
    assert sender.polls == 0
    for _ in range(3):
        scene.now += POLL_SECONDS
        scene.say()
        scene.say()
    assert sender.polls == 3
    scene.say(delta("", end="stop"))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_left_cancels_its_request_once(scene: Scene, stream: bool) -> None:
    sender = scene.open(stream=stream, cancelled=True)
    scene.now += POLL_SECONDS
    scene.say(delta("a", 1))
    assert scene.cancelled == ["1"]
    scene.now += POLL_SECONDS
    scene.say(delta("b", 2))
    assert (scene.cancelled, sender.polls) == (["1"], 1)
    scene.say(delta("", end="cancelled"))
    assert sender.tables[-1] == {"error": "the client cancelled the request", "code": "CANCELLED"}
    assert sender.flags[-1] == 1


def test_a_client_that_left_too_late_gets_its_whole_answer(scene: Scene) -> None:
    sender = scene.open(stream=True, cancelled=True)
    scene.say(delta("a", 1))
    scene.say(delta("b", 2, end="stop"))
    assert sender.texts() == ["a", "b"]


def test_a_request_cancelled_by_others_ends_as_an_answer(scene: Scene) -> None:
    sender = scene.open()
    scene.say(delta("a", 1), delta("", end="cancelled"))
    assert (sender.texts(), sender.tables[0]["finish_reason"]) == (["a"], "cancelled")


def test_stop_finds_all_requests_with_the_id_and_only_open_ones(scene: Scene) -> None:
    for request_id, client_id in (("1", "a"), ("2", "b"), ("3", "a"), ("4", ""), ("5", "c")):
        scene.open(request_id, client_id=client_id)
    scene.say(delta("", end="stop", request_id="5"))
    assert [scene.responder.stop(client_id) for client_id in ("a", "c", "unknown", "")] == [True, False, False, False]
    assert scene.cancelled == ["1", "3"]
    scene.say(*(delta("", end="cancelled", request_id=request_id) for request_id in "1234"))


def test_a_failing_send_is_logged_once_and_ends_only_its_request(scene: Scene) -> None:
    bad, good = scene.open("1", client_id="bad", stream=True, broken=2), scene.open("2", stream=True)
    scene.say(delta("a", 1), delta("x", 1, request_id="2"))
    scene.say(delta("b", 2), delta("y", 2, request_id="2"))
    assert scene.cancelled == ["1"]
    assert len(scene.log) == 1 and scene.log[0].startswith("request 'bad': the answer could not be sent\nTraceback")
    assert "the pipe is broken" in scene.log[0]
    bad.broken = 0
    scene.say(delta("c", 3, end="cancelled"), delta("z", 3, request_id="2", end="stop"))
    assert bad.tables == [{"error": "request 'bad': internal error (RuntimeError)", "code": "INTERNAL"}]
    assert good.texts() == ["x", "y", "z"]


def test_an_answer_that_cannot_be_built_still_ends(scene: Scene) -> None:
    sender = scene.open()
    scene.say(delta("\ud800", 1, end="stop"))
    assert sender.tables == [{"error": "request #1: internal error (UnicodeEncodeError)", "code": "INTERNAL"}]
    assert len(scene.log) == 1


def test_an_error_that_cannot_be_sent_is_given_up(scene: Scene) -> None:
    sender, other = scene.open(broken=9), scene.open("2")
    scene.say(delta("a", 1, end="stop"), delta("b", 1, end="stop", request_id="2"))
    assert (sender.responses, other.texts(), len(scene.log)) == ([], ["b"], 1)
    scene.triton.senders.remove(sender)


def test_even_the_last_word_may_fail(scene: Scene) -> None:
    sender, other = scene.open(broken=9, stream=True), scene.open("2")
    scene.say(delta("a", 1), failed(EngineFailure("it broke")), delta("b", 1, end="stop", request_id="2"))
    assert (sender.responses, other.texts()) == ([], ["b"])
    assert scene.log[1:] == ["request #1: could not be ended: the pipe is broken"]
    scene.triton.senders.remove(sender)


def test_a_poll_that_fails_withdraws_the_request(scene: Scene) -> None:
    sender = scene.open(stream=True)

    def gone() -> bool:
        raise RuntimeError("no server")

    sender.is_cancelled = gone
    scene.say(delta("a", 1))
    scene.now += POLL_SECONDS
    scene.say()
    assert (scene.cancelled, len(scene.log)) == (["1"], 1)
    scene.say(delta("", end="cancelled"))
    assert sender.tables[-1]["code"] == "INTERNAL"


def test_fail_open_ends_every_request_after_what_was_said_before(scene: Scene) -> None:
    done, open_ = scene.open("1"), scene.open("2", stream=True)
    scene.responder.on_output(delta("a", 1, end="stop"))
    scene.responder.on_output(delta("x", 1, request_id="2"))
    scene.responder.fail_open(EngineFailure("the engine has stopped"))
    scene.say()
    assert done.texts() == ["a"]
    assert open_.tables[0]["text_output"] == "x"
    assert open_.tables[1] == {"error": "request #2: the engine has stopped", "code": "INTERNAL"}


def test_close_sends_what_is_queued_then_ends_the_rest(triton: Any) -> None:
    scene = Scene(triton)
    scene.responder.start()
    done, open_ = scene.open("1"), scene.open("2")
    scene.responder.on_output(delta("a", 1, end="stop"))
    assert scene.responder.close(timeout=5) is True
    assert done.texts() == ["a"]
    assert open_.tables == [{"error": "the server is shutting down", "code": "UNAVAILABLE"}]


def test_close_does_not_wait_for_ever(triton: Any) -> None:
    scene, release = Scene(triton), Event()
    scene.responder.start()
    sender = scene.open(prompt_text=lambda: str(release.wait(5)))
    scene.responder.on_output(delta("a", 1, end="stop"))
    assert scene.responder.close(timeout=0.05) is False
    release.set()
    assert sender.done.wait(5)
