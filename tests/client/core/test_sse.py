"""Events are the same however their bytes are cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swift_client import ProtocolError
from swift_client.core import sse
from swift_client.core.sse import EventParser


def events_of(*pieces: bytes) -> list[str]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)] + parser.end()


@given(
    st.lists(st.dictionaries(st.text(), st.text(), max_size=2), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_however_they_are_cut(values: list[dict[str, str]], newline: str, cuts: list[int]) -> None:
    body = "".join(f"data: {json.dumps(v, ensure_ascii=False)}{newline}{newline}" for v in values).encode(
        "utf-8", "surrogatepass"
    )
    at = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    pieces = [body[a:b] for a, b in itertools.pairwise(at)]
    if any("\ud800" <= c <= "\udfff" for v in values for t in (*v, *v.values()) for c in t):
        with pytest.raises(ProtocolError):
            events_of(*pieces)
        return
    assert [json.loads(event) for event in events_of(*pieces)] == values


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8))
def test_any_bytes_cut_anywhere_are_the_same_or_the_same_error(body: bytes, cuts: list[int]) -> None:
    def outcome(*pieces: bytes) -> object:
        try:
            return events_of(*pieces)
        except ProtocolError:
            return ProtocolError

    at = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    assert outcome(*(body[a:b] for a, b in itertools.pairwise(at))) == outcome(body)


def test_what_is_no_data_is_left_out() -> None:
    body = b": comment\nevent: x\nid: 3\ndata: a\ndata:b\nretry\n\n\n\ndata:  c\n\n"
    assert events_of(body) == ["a\nb", " c"]


def test_an_event_that_nobody_closes() -> None:
    assert events_of(b'data: {"error": "x"}') == ['{"error": "x"}']


def test_what_is_no_event_at_all() -> None:
    with pytest.raises(ProtocolError, match="something else"):
        events_of(b'{"error": "not an event"}\n')
    with pytest.raises(ProtocolError, match="UTF-8"):
        events_of(b"data: \xff\n\n")
    with pytest.raises(ProtocolError, match="UTF-8"):
        events_of(b"data: \xc3")


def test_a_line_without_end_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MOST_CHARACTERS", 100)
    parser = EventParser()
    parser.feed(b"data: " + b"x" * 90)
    with pytest.raises(ProtocolError, match="longer than 100 characters"):
        parser.feed(b"x" * 90)
