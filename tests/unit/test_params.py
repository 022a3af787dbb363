"""What a request may ask for, and what it is told when it may not."""

from __future__ import annotations

from typing import Any

import pytest

from swift_backend.errors import InvalidRequest
from swift_backend.params import SamplingParams
from swift_backend.request_keys import KEYS

RANGES = {name: key.limits for name, key in KEYS.items() if key.limits is not None}


def test_defaults_are_the_contracts() -> None:
    params = SamplingParams()
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p, params.min_p) == (256, 0.0, 0, 1.0, 0.0)
    assert (params.speculation, params.seed, params.stop, params.skip_special_tokens) == ("auto", None, (), True)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("temperature", 7.5, "temperature must be in [0, 5], got 7.5"),
        ("temperature", float("nan"), "temperature must be finite, got nan"),
        ("temperature", "warm", "temperature must be a number, got 'warm'"),
        ("temperature", True, "temperature must be a number, got True"),
        ("temperature", [1], "temperature must be a number, got [1]"),
        ("top_p", 0, "top_p must be in (0, 1], got 0"),
        ("top_k", -2, "top_k must be in [-1, 2147483647], got -2"),
        ("max_tokens", 0, "max_tokens must be in [1, 2147483647], got 0"),
        ("max_tokens", 1.5, "max_tokens must be an integer, got 1.5"),
        ("max_tokens", "1e3", "max_tokens must be an integer, got '1e3'"),
        ("max_tokens", 10**400, None),
        ("temperature", 10**400, None),
        ("timeout_ms", 10**400, None),
        ("max_tokens", float("inf"), "max_tokens must be an integer, got inf"),
        ("seed", -1, "seed must be in [0, 9223372036854775807], got -1"),
        ("seed", 2**63, None),
        ("stop", [""], None),
        ("stop", ["a"] * 17, "stop takes at most 16 strings, got 17"),
        ("stop", 5, None),
        ("stop_token_ids", [1.5], "stop_token_ids must be an integer, got 1.5"),
        ("stop_token_ids", [-1], "stop_token_ids: a token id must be in [0, 2147483647], got -1"),
        ("stop_token_ids", "5", "stop_token_ids must be a list of token ids, got '5'"),
        ("min_tokens", 257, "min_tokens must be in [0, 256], which is max_tokens, got 257"),
        ("repetition_penalty", 0, "repetition_penalty must be in (0, 10], got 0"),
        ("presence_penalty", -2.5, "presence_penalty must be in [-2, 2], got -2.5"),
        ("frequency_penalty", "x", "frequency_penalty must be a number, got 'x'"),
        ("logit_bias", {"5": 101}, "logit_bias[5] must be in [-100, 100], got 101"),
        ("logit_bias", {"5": float("nan")}, "logit_bias must be finite, got nan"),
        ("logit_bias", {"x": 1}, "logit_bias must be an integer, got 'x'"),
        ("logit_bias", {"-1": 1}, "logit_bias: a token id must be in [0, 2147483647], got '-1'"),
        ("logit_bias", {"5": 1, "05": 2}, "logit_bias[5] is given twice with different values"),
        ("logit_bias", 7, "logit_bias must be an object of token id → number, got 7"),
        ("logit_bias", "ab", None),
        ("logit_bias", [], None),
        ("logit_bias", ["12"], None),
        ("logit_bias", ((1, 2), 3), None),
        ("bad_words", ["\ud800"], None),
        ("stop", "\ud800", None),
        ("n", True, "n must be 1, got True"),
        ("bad_words", "word", "bad_words must be a list of non-empty strings, got 'word'"),
        ("bad_words", [""], None),
        ("bad_words", [3], None),
        ("logprobs", 21, "logprobs must be in [0, 20], got 21"),
        ("logprobs", True, "logprobs must be an integer, got True"),
        ("n", 2, "n must be 1, got 2"),
        ("best_of", 3, "best_of must be 1, got 3"),
        ("max_tokens", "1_0", "max_tokens must be an integer, got '1_0'"),
        ("temperature", "infinity", "temperature must be a number, got 'infinity'"),
        ("ignore_eos", 1, "ignore_eos must be true or false, got 1"),
        (
            "speculation",
            "on",
            "speculation must be one of auto, skip, ngram, similarity, search, static, fixed, lookahead, off, got 'on'",
        ),
        ("confidence_threshold", 1.1, "confidence_threshold must be in [0, 1], got 1.1"),
        ("temprature", 1, "temprature is not a sampling parameter; did you mean temperature?"),
        ("wxyz", 1, "wxyz is not a sampling parameter"),
    ],
)
def test_what_is_wrong_is_named(key: str, value: Any, message: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams.from_mapping({key: value})
    assert caught.value.field == key
    assert key in str(caught.value)
    assert message is None or str(caught.value) == message
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("key", RANGES)
def test_both_ends_of_every_range(key: str) -> None:
    limits = RANGES[key]
    number = int if limits.integer else float
    for value in [limits.high] if limits.low_open else [limits.low, limits.high]:
        room = {"max_tokens": value} if key == "min_tokens" and value else {}
        assert getattr(SamplingParams.from_mapping({**room, key: number(value)}), key) == value
    step = 1 if limits.integer else 1e-9
    for value in (limits.low if limits.low_open else limits.low - step, limits.high + step):
        with pytest.raises(InvalidRequest, match=key):
            SamplingParams.from_mapping({key: number(value)})


def test_strings_that_spell_numbers_are_numbers() -> None:
    """perf_analyzer and vLLM's clients send them so."""
    params = SamplingParams.from_mapping({"temperature": "0.5", "max_tokens": "8", "ignore_eos": "true", "seed": "3"})
    assert (params.temperature, params.max_tokens, params.ignore_eos, params.seed) == (0.5, 8, True, 3)


def test_logit_bias_is_read_from_json_and_from_python() -> None:
    assert SamplingParams.from_mapping({"logit_bias": {"5": "1.5", "7": -100}}).logit_bias == ((5, 1.5), (7, -100.0))
    assert SamplingParams(logit_bias={5: 1.5}).logit_bias == ((5, 1.5),)  # type: ignore[arg-type]


def test_one_answer_may_be_asked_for() -> None:
    """Triton's OpenAI frontend always sends n, older ones best_of, and logprobs as a boolean."""
    params = SamplingParams.from_mapping({"n": 1, "best_of": 1, "logprobs": False})
    assert params == SamplingParams()


@pytest.mark.parametrize("key", ["", "x" * 5000])
def test_an_odd_key_is_named_as_far_as_can_be(key: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a sampling parameter") as caught:
        SamplingParams.from_mapping({key: 1})
    assert len(caught.value.field) <= 80 and not str(caught.value).startswith(" ")


def test_null_is_not_set() -> None:
    assert SamplingParams.from_mapping({"seed": None, "temperature": None}) == SamplingParams()


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]


def test_none_is_not_set_in_the_constructor_either() -> None:
    every: Any = dict.fromkeys(KEYS)
    assert SamplingParams(**every) == SamplingParams()


def test_the_constructor_checks_too() -> None:
    with pytest.raises(InvalidRequest, match="top_p"):
        SamplingParams(top_p=2.0)
