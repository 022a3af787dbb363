"""Stop strings: nothing of one is ever sent too early, and cutting the text in pieces changes nothing."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swift_backend.text.stop import StopMatcher


def feed(stops: list[str], pieces: list[str], include: bool = False) -> tuple[list[str], bool, str]:
    """What each push returned, whether a stop was found, what flush returned."""
    matcher, sent = StopMatcher(stops, include), []
    for piece in pieces:
        text, matched = matcher.push(piece)
        sent.append(text)
        if matched:
            return sent, True, matcher.flush()
    return sent, False, matcher.flush()


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        ([], ["any", "thing"], (["any", "thing"], False, "")),
        (["END"], ["abcENDdef"], (["abc"], True, "")),
        (["END"], ["abE", "N", "Dx"], (["ab", "", ""], True, "")),
        (["END"], ["abE", "NX"], (["ab", "ENX"], False, "")),
        (["END"], ["abEN"], (["ab"], False, "EN")),
        (["aab"], ["aaab"], (["a"], True, "")),
        (["aab"], ["aa", "a", "b"], (["", "a", ""], True, "")),
        (["\n\n"], ["line\n", "next\n", "\n"], (["line", "\nnext", ""], True, "")),
        (["🙂"], ["a🙂b"], (["a"], True, "")),
        (["b", "abc"], ["xabc"], (["xa"], True, "")),
        (["bc", "abc"], ["xabc"], (["x"], True, "")),
    ],
)
def test_literals(stops: list[str], pieces: list[str], expected: tuple[list[str], bool, str]) -> None:
    assert feed(stops, pieces) == expected


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["END"], ["abE", "NDx"], (["ab", "END"], True, "")),
        (["b", "abc"], ["xabc"], (["xab"], True, "")),
        (["ab", "abc"], ["xabc"], (["xab"], True, "")),
    ],
)
def test_including_the_stop(stops: list[str], pieces: list[str], expected: tuple[list[str], bool, str]) -> None:
    assert feed(stops, pieces, include=True) == expected


def test_nothing_follows_the_match() -> None:
    matcher = StopMatcher(["x"], include=False)
    assert matcher.push("ax") == ("a", True)
    assert matcher.push("more") == ("", True)
    assert matcher.flush() == ""


def test_only_what_may_become_a_stop_is_held() -> None:
    """A hold-back of fixed length would keep four characters here and make the stream stutter."""
    matcher = StopMatcher(["12345"], include=False)
    assert [matcher.push(piece)[0] for piece in ("abcd", "e1", "2", "f")] == ["abcd", "e", "", "12f"]


def test_flush_empties() -> None:
    matcher = StopMatcher(["END"], include=False)
    matcher.push("E")
    assert (matcher.flush(), matcher.flush()) == ("E", "")


def reference(text: str, stops: list[str], include: bool) -> tuple[str, bool]:
    """Character by character: the first stop to be complete, the longest if several are."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return (text[:end] if include else text[: end - max(map(len, complete))]), True
    return text, False


alphabet = st.text(alphabet="ab\n", max_size=4)


@given(
    pieces=st.lists(alphabet, max_size=12),
    stops=st.lists(alphabet.filter(bool), max_size=4),
    include=st.booleans(),
)
@example(pieces=["a", "ab", "b"], stops=["aabb", "ab"], include=False)
def test_the_cutting_does_not_matter(pieces: list[str], stops: list[str], include: bool) -> None:
    sent, matched, rest = feed(stops, pieces, include)
    assert ("".join(sent) + rest, matched) == reference("".join(pieces), stops, include)


@given(pieces=st.lists(alphabet, min_size=1, max_size=12), stops=st.lists(alphabet.filter(bool), max_size=4))
def test_as_much_as_possible_is_sent(pieces: list[str], stops: list[str]) -> None:
    _, matched, rest = feed(stops, pieces)
    if not matched and rest:
        assert any(stop.startswith(rest) and stop != rest for stop in stops)


@pytest.mark.parametrize(
    ("early", "late", "expected"),
    [
        (["END"], ["x", "END", "y"], "ENDx"),  # one that ends too early does not count
        (["E"], ["ND"], ""),  # it may begin early
        (["EN"], ["D", "z"], ""),
        (["aEND", "END"], ["b"], "aENDENDb"),
        (["a"], ["b"], "ab"),
    ],
)
def test_before_min_tokens_nothing_stops(early: list[str], late: list[str], expected: str) -> None:
    matcher = StopMatcher(["END"], include=False)
    text = "".join(matcher.push(piece, may_stop=False)[0] for piece in early)
    for piece in late:
        more, matched = matcher.push(piece)
        text += more
        if matched:
            break
    assert text + matcher.flush() == expected


def test_a_short_stop_string_inside_held_text_does_not_count_later() -> None:
    """abc is held as the beginning of abcd; the ab in it ended before min_tokens."""
    matcher = StopMatcher(["ab", "abcd"], include=False)
    assert matcher.push("abc", may_stop=False) == ("", False)
    assert matcher.push("x") == ("abcx", False)
    assert matcher.push("ab") == ("", True)
