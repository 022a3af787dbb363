"""A JSON text that says two things, or nothing, is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from swift_backend.errors import InvalidRequest
from swift_backend.serving.strict_json import read_json, read_json_object, same


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "a": 1.0}', {"a": 1.0}),
        ('{"a": [1, {"b": "x"}], "a": [1, {"b": "x"}]}', {"a": [1, {"b": "x"}]}),
        ('[{"a": 1}, {"a": 2}]', [{"a": 1}, {"a": 2}]),
        ("null", None),
    ],
)
def test_the_same_said_twice_is_said_once(text: str, value: Any) -> None:
    assert read_json("messages", text) == value


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ('{"a": 1, "a": 2}', "a", "a is given twice in parameters with different values: 1 and 2"),
        ('{"a": 1, "a": 1, "a": true}', "a", "a is given twice in parameters with different values: 1 and True"),
        ('{"logit_bias": {"5": 1, "5": -1}}', "5", "5 is given twice in parameters with different values: 1 and -1"),
        ('{"a": [0], "a": 0}', "a", "a is given twice in parameters with different values: [0] and 0"),
        ("[" * 100_000, "parameters", "parameters is not valid JSON: it is nested too deeply"),
        ("{'a': 1}", "parameters", "parameters is not valid JSON: Expecting property name enclosed in double quotes: "),
        ("", "parameters", "parameters is not valid JSON: Expecting value: "),
        ("9" * 5000, "parameters", "parameters is not valid JSON: Exceeds the limit (4300 digits) for integer"),
    ],
)
def test_what_contradicts_itself_is_named(text: str, field: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_json("parameters", text)
    assert str(caught.value).startswith(said) and caught.value.field == field


def test_a_huge_key_does_not_fill_the_message() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_json("messages", f'{{"{"k" * 5000}": 1, "{"k" * 5000}": 2}}')
    assert str(caught.value) == "k" * 80 + " is given twice in messages with different values: 1 and 2"


@pytest.mark.parametrize("text", ["[]", "5", "null", '"x"'])
def test_only_an_object_is_an_object(text: str) -> None:
    assert read_json_object("parameters", '{"a": 1}') == {"a": 1}
    with pytest.raises(InvalidRequest, match="parameters must be a JSON object, got "):
        read_json_object("parameters", text)


def test_true_is_no_number_and_nan_is_itself() -> None:
    assert [same(1, 1.0), same("a", "a"), same(math.nan, math.nan)] == [True] * 3
    assert [same(1, True), same(0, False), same(1, 2), same("1", 1)] == [False] * 4
