"""What one generation decides, with a clock of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swift_client import (
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    ProtocolError,
    QueueFull,
    Retry,
    ServerError,
    Timeout,
    Timing,
    Unavailable,
    Usage,
    fake_response,
)
from swift_client.core.generation import Generation
from swift_client.core.request import InferRequest, Response

REQUEST = InferRequest("swift", {"text_input": "a"}, "r")


def generation(timeout: Timeout | None = None, retry: Retry | None = None) -> Generation:
    made = Generation(REQUEST, timeout or Timeout.unlimited(), retry or Retry(), started=100.0)
    made.ask(100.0)
    return made


def test_deltas_add_up() -> None:
    one = generation()
    first = one.receive(fake_response("a", [1], drafted=3, accepted=0, num_input_tokens=9), 101.0)
    second = one.receive(fake_response("bc", [2, 3, 4], "stop", drafted=6, accepted=2, num_input_tokens=9), 103.0)
    assert first is not None and second is not None
    assert (first.accepted_draft_tokens, second.accepted_draft_tokens) == (0, 2)
    assert (one.text, one.token_ids, one.usage) == ("abc", (1, 2, 3, 4), Usage(9, 4))
    assert (one.speculation.acceptance_rate, one.timing) == (2 / 6, Timing(1.0, 3.0, 4))
    assert one.over and one.final
    completion = one.completion()
    assert (completion.text, completion.finish_reason, completion.request_id) == ("abc", "stop", "r")


def test_final_by_itself_after_the_last_data() -> None:
    one = generation()
    assert one.receive(fake_response("a", [1], "length", final=False), 101.0) is not None
    assert one.over and not one.final
    assert one.receive(Response(final=True), 101.0) is None
    assert one.final and one.completion().text == "a"


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (None, "ended before its last response"),
        (Response(final=True), "ended before its last response"),
        (fake_response("a", [1], final=True), "no finish_reason"),
        (fake_response("a", [1], "because"), "finish_reason must be one of stop, length, cancelled, timeout"),
        (fake_response("a", [1], output_ids=3), "output_ids must be list, got 3"),
        (fake_response("a", [1], text_output=None), "text_output must be str, got None"),
        (fake_response("a", [1], logprobs="[{}]"), "logprobs must be the contract's JSON"),
        (fake_response("a", [1], logprobs="{"), "logprobs must be the contract's JSON"),
        (Response({"text": "a"}), "the response has no finish_reason: is this a SWIFT model?"),
    ],
)
def test_what_no_swift_server_says(response: Response | None, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        generation().receive(response, 101.0)


def test_an_empty_response_that_is_not_the_last_is_nothing() -> None:
    assert generation().receive(Response(), 101.0) is None


def test_logprobs_are_read() -> None:
    text = '[{"token_id": 1, "logprob": -0.5, "token": "a", "top": [{"token_id": 2, "logprob": -2, "token": "b"}]}]'
    one = generation()
    chunk = one.receive(fake_response("a", [1], "stop", logprobs=text, cumulative_logprob=-0.5), 101.0)
    assert chunk is not None and chunk.logprobs[0].top[0].token == "b"
    assert one.completion().logprobs == chunk.logprobs and one.completion().cumulative_logprob == -0.5


def test_errors_in_the_stream_are_raised() -> None:
    with pytest.raises(QueueFull):
        generation().receive(Response(error="the waiting queue is full: 1 of 1 requests wait", final=True), 101.0)


def test_deadlines() -> None:
    one = generation(Timeout(first_token=5, between_tokens=2, total=7))
    first = one.deadline()
    assert first is not None and (first.at, first.limit) == (105.0, "first_token")
    one.receive(fake_response("a", [1]), 103.0)
    second = one.deadline()
    assert second is not None and (second.at, second.limit) == (105.0, "between_tokens")
    one.receive(fake_response("a", [1]), 106.0)
    third = one.deadline()
    assert third is not None and (third.at, third.limit) == (107.0, "total")
    assert str(one.expire(third)) == "the answer was not complete after 7 s"
    assert [one.expire(d).message for d in (first, second)] == [
        "the first token did not come within 5 s",
        "no token came for 2 s",
    ]
    assert generation().deadline() is None


@pytest.mark.parametrize("error", [Unavailable("x"), QueueFull("x"), ConnectionFailed("x")])
def test_what_is_tried_again(error: Unavailable) -> None:
    one = generation(retry=Retry(limit=2, delay=1.0))
    assert [one.fail(error, 100.0, 1.0), one.fail(error, 100.0, 0.0)] == [1.0, 1.0]
    with pytest.raises(type(error)):
        one.fail(error, 100.0, 0.0)
    assert one.over and error.request_id == "r"
    with pytest.raises(type(error)):
        one.completion()


@pytest.mark.parametrize(
    "error",
    [InvalidRequest("x"), Cancelled("x"), DeadlineExceeded("x"), ProtocolError("x"), ServerError("x")],
)
def test_what_is_not(error: ServerError) -> None:
    with pytest.raises(type(error), match=r"x \(request r\)"):
        generation().fail(error, 100.0, 0.0)


def test_nothing_is_tried_again_after_the_first_token() -> None:
    one = generation()
    one.receive(fake_response("a", [1]), 101.0)
    with pytest.raises(ConnectionFailed):
        one.fail(ConnectionFailed("x"), 101.0, 0.0)


def test_nothing_is_tried_again_beyond_the_deadline() -> None:
    one = generation(Timeout(total=1.0), Retry(delay=0.5))
    assert one.fail(ConnectionFailed("x"), 100.2, 1.0) == 0.5
    with pytest.raises(ConnectionFailed):
        one.fail(ConnectionFailed("x"), 100.5, 0.0)


def test_a_stream_that_was_left_has_what_was_read() -> None:
    one = generation()
    one.receive(fake_response("a", [1]), 101.0)
    with pytest.raises(ProtocolError, match="the stream is not finished"):
        one.completion()
    one.leave()
    assert (one.completion().text, one.completion().finish_reason) == ("a", "cancelled")
    one.leave()


LIMIT = st.floats(0, 100) | st.none()


@given(LIMIT, LIMIT, LIMIT, st.floats(0, 100))
def test_the_deadline_is_the_first_limit_that_counts(
    first: float | None, between: float | None, total: float | None, came: float
) -> None:
    def earliest(since: float, waiting: float | None) -> float | None:
        moments = [start + limit for start, limit in ((since, waiting), (100.0, total)) if limit is not None]
        return min(moments, default=None)

    def reached() -> float | None:
        deadline = one.deadline()
        return deadline.at if deadline else None

    one = generation(Timeout(None, first, between, total))
    assert reached() == earliest(100.0, first)
    one.receive(fake_response("a", [1]), 100.0 + came)
    assert reached() == earliest(100.0 + came, between)


@given(st.integers(1, 60), st.floats(0, 1), st.floats(0.001, 10), st.floats(0.001, 100))
def test_waits_double_up_to_the_most_and_are_spread(failures: int, chance: float, delay: float, most: float) -> None:
    wait = Retry(limit=60, delay=delay, max_delay=most).delay_after(failures, chance)
    whole = min(most, delay * 2 ** (failures - 1))
    assert wait is not None and 0.5 * whole <= wait <= whole
    assert Retry(limit=failures - 1).delay_after(failures, chance) is None
