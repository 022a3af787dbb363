"""The figures of the load tools, by hand-made answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.answers import Answer
from loadtest.concurrency import Level, _divergence, falling
from loadtest.figures import _LABEL, _LINE, difference, total
from loadtest.grpc_stream import Chunk
from loadtest.prompts import read_prompts
from loadtest.soak_outcome import Result, growth
from loadtest.stalls import gaps_of


def answer(*ids: int, times: tuple[float, ...] = (), reason: str = "length", **outputs: Any) -> Answer:
    """One chunk for each token."""
    made = Answer(0.0)
    for place, token in enumerate(ids):
        last = place == len(ids) - 1
        values = {
            "output_ids": [token],
            "text_output": "",
            "finish_reason": reason if last else "",
            "logprobs": "",
            **outputs,
        }
        made.chunks.append(Chunk(values, last, times[place] if times else float(place)))
    return made


def level(mode: str, users: int, tokens: int) -> Level:
    return Level(mode, users, tokens, 1.0, 0, 0)


def test_a_curve_falls_where_more_clients_get_less_than_before() -> None:
    rising = [level("off", 1, 30), level("off", 2, 50), level("off", 4, 49)]
    assert falling(rising) == []  # within the noise
    assert falling([*rising, level("auto", 1, 60), level("auto", 2, 50)]) == [
        "auto: 50.0 tokens/s with 2 clients, 60.0 with 1"
    ]
    assert falling([*rising, level("off", 8, 40), level("off", 8, 60), level("off", 8, 55)]) == []  # by the median


def test_where_an_answer_leaves_its_solo_answer() -> None:
    entries = [{"logprob": -0.1, "top": [{"logprob": -0.1}, {"logprob": -0.35}]}]
    solo = answer(1, 2, 3, logprobs=json.dumps(entries))
    assert _divergence(solo, answer(1, 2, 3), "off", 2, 0) is None
    found = _divergence(solo, answer(1, 9, 3), "off", 2, 7)
    assert found is not None and (found.prompt, found.position) == (7, 1)
    assert found.margin == pytest.approx(0.25)


def test_gaps_are_those_after_the_beginning() -> None:
    steady = answer(*range(6), times=(0.0, 1.0, 2.0, 3.0, 4.0, 5.0))
    stalled = answer(*range(6), times=(0.0, 1.0, 2.0, 3.0, 4.0, 9.0))
    gaps = gaps_of([[steady], [stalled]], begun=2.0)
    assert (gaps.count, gaps.median, gaps.longest) == (6, 1.0, 5.0)
    assert gaps.worst_ratio == pytest.approx(4.92)


def test_growth_tells_a_leak_from_a_jump() -> None:
    assert growth([100] * 20) == (0.0, 0.0)
    jump = growth([100] * 10 + [110] * 10)
    assert jump[0] == pytest.approx(0.1) and jump[1] == 0.0
    leak = growth([100 + place for place in range(20)])
    assert leak[1] == pytest.approx(0.1) and leak[0] > 0.05


@pytest.mark.parametrize(
    ("kind", "answered", "trouble"),
    [
        ("run", answer(1, 2, 3), ""),
        ("run", answer(1, 9, 3), "another answer than alone"),
        ("run", answer(1, 2), "an answer that is too short"),
        ("run", answer(1, 2, reason="cancelled"), "ended with 'cancelled' "),
        ("stopped", answer(1, 2, reason="cancelled"), ""),
        ("late", answer(1, 2, reason="timeout"), ""),
        ("late", answer(1, 2, reason="cancelled"), "ended with 'cancelled' "),
        ("left", answer(1, 2, reason=""), ""),
        ("left", answer(2), "another answer than alone"),
        ("wrong", answer(1), "another answer than alone"),
    ],
)
def test_what_is_wrong_with_an_answer(kind: str, answered: Answer, trouble: str) -> None:
    assert Result(kind, answered, [] if kind == "wrong" else [1, 2, 3]).trouble == trouble


def test_metrics_are_read_with_their_labels() -> None:
    match = _LINE.match('swift_requests_total{outcome="a\\"b",x="y"} 3')
    assert match and _LABEL.findall(match[2]) == [("outcome", 'a\\"b'), ("x", "y")]
    metrics = {("a", (("k", "1"),)): 2.0, ("a", (("k", "2"),)): 3.0, ("b", ()): 5.0}
    assert (total(metrics, "a"), total(metrics, "a", k="2"), total(metrics, "b")) == (5.0, 3.0, 5.0)
    assert difference(metrics, {("b", ()): 4.0}) == {**metrics, ("b", ()): 1.0}


def test_prompts_are_taken_in_turn_from_each_category(tmp_path: Path) -> None:
    rows = [("x", "x1"), ("x", "x2"), ("y", "y1"), ("y", "a long one " * 99), ("x", "x3")]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"category": name, "turns": [turn]}) for name, turn in rows))
    assert read_prompts([file], 4) == ["x1", "y1", "x2", "x3"]
    with pytest.raises(ValueError, match="5 prompts are wanted, and the files hold 4"):
        read_prompts([file], 5)
