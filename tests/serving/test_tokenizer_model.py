"""The life cycle of swift_tokenizer around a fake tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import triton_python_backend_utils as pb_utils

from swift_backend.config import EngineConfig
from swift_backend.errors import InvalidRequest, ModelLoadError
from swift_backend.metric_families import OUTCOMES, REQUESTS
from swift_backend.serving import tokenizer_model
from swift_backend.serving.tokenizer_model import TritonPythonModel


class FakeTokenizer:
    """Ids are code points; chats of more than one message are refused."""

    def encode(self, text: str) -> list[int]:
        if text == "boom":
            raise RuntimeError("a bug")
        return [ord(character) for character in text.strip()]

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        if len(messages) > 1:
            raise InvalidRequest("messages", "roles must alternate")
        return self.encode(f"{messages[0]['role']}:{messages[0]['content']}")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was resolved and loaded, in order."""
    calls: list[Any] = []

    def resolve(source: str | None, dtype: str, *, progress: Callable[[str], None]) -> Path:
        if source == "missing":
            raise ModelLoadError("The model 'missing' does not exist.")
        progress("converting")
        calls.append((source, dtype))
        return Path("models") / str(source)

    class Loading(FakeTokenizer):
        @classmethod
        def load(cls, directory: Path) -> FakeTokenizer:
            calls.append(directory)
            return FakeTokenizer()

    monkeypatch.setattr(tokenizer_model, "resolve_model", resolve)
    monkeypatch.setattr(tokenizer_model, "Tokenizer", Loading)
    shape = SimpleNamespace(context_length=9, vocab_size=200)
    monkeypatch.setattr(tokenizer_model, "read_config", lambda directory: shape)
    for name in EngineConfig.__dataclass_fields__:
        monkeypatch.delenv(f"SWIFT_{name.upper()}", raising=False)
    return calls


def load(**parameters: str) -> TritonPythonModel:
    entries = {name: {"string_value": value} for name, value in parameters.items()}
    model = TritonPythonModel()
    model.initialize({"model_name": "swift_tokenizer", "model_config": json.dumps({"parameters": entries})})
    return model


def test_only_the_tokenizer_of_the_configured_model_is_loaded(triton: Any, asked: list[Any]) -> None:
    load(model="tiny", dtype="float32")
    load()
    assert asked == [("tiny", "float32"), Path("models/tiny"), (None, "bfloat16"), Path("models/None")]
    assert triton.log == [("info", "converting"), ("info", "converting")]


def test_each_request_gets_its_own_answer_in_order(triton: Any, asked: list[Any]) -> None:
    requests = [
        triton.request(decoupled=False, text_input="AB"),
        triton.request(decoupled=False, text_input="A", messages="[]"),
        triton.request(decoupled=False, messages='[{"role": "u", "content": "C"}]'),
    ]
    responses = load().execute(requests)
    assert [triton.table(response) for response in responses] == [
        {"input_ids": [65, 66]},
        {"error": "exactly one of text_input and messages must be given, got both", "code": "INVALID_ARG"},
        {"input_ids": [117, 58, 67]},
    ]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"text_input": "  "}, "text_input gives no tokens at all"),
        ({"messages": json.dumps([{"role": "u", "content": "a"}] * 2)}, "messages: roles must alternate"),
        ({}, "exactly one of text_input and messages must be given, got neither"),
        ({"text_input": "A" * 9}, "text_input must be at most 8 tokens long, got 9"),
        (
            {"messages": '[{"role": "user", "content": "long"}]'},
            "messages must be at most 8 tokens long, got 9",
        ),
        ({"text_input": "AÈ"}, "text_input must consist of tokens whose ids are in [0, 199], got 200"),
    ],
)
def test_a_wrong_prompt_is_an_invalid_argument(
    triton: Any, asked: list[Any], inputs: dict[str, str], message: str
) -> None:
    [response] = load().execute([triton.request(decoupled=False, **inputs)])
    assert triton.table(response) == {"error": message, "code": "INVALID_ARG"}
    assert triton.errors() == []


def test_the_longest_prompt_and_the_last_token_are_fine(triton: Any, asked: list[Any]) -> None:
    [response] = load().execute([triton.request(decoupled=False, text_input="AAAAAAAÇ")])
    assert triton.table(response) == {"input_ids": [65] * 7 + [199]}


def test_an_id_that_is_no_text_is_an_invalid_argument(triton: Any, asked: list[Any]) -> None:
    bad, good = load().execute([triton.request(name, decoupled=False, text_input="A") for name in (b"\xff", "x")])
    assert triton.table(bad) == {"error": "id is not valid UTF-8: invalid start byte at byte 0", "code": "INVALID_ARG"}
    assert triton.table(good) == {"input_ids": [65]}


def test_a_bug_is_logged_with_its_trace_and_told_without(triton: Any, asked: list[Any]) -> None:
    model = load()
    requests = [triton.request("r1", decoupled=False, text_input=text) for text in ("boom", "A")]
    bad, good = model.execute(requests)
    assert triton.table(bad) == {"error": "request 'r1': internal error (RuntimeError)", "code": "INTERNAL"}
    assert triton.table(good) == {"input_ids": [65]}
    [line] = triton.errors()
    assert line.startswith("request 'r1': Traceback") and line.endswith("RuntimeError: a bug")


def test_what_it_refuses_is_counted(triton: Any, asked: list[Any]) -> None:
    """Under the decoder's name and labels: those who look at /metrics see one number of invalid requests."""
    model = load()
    texts = ("A", "  ", "A" * 9, "boom", "B")
    model.execute([triton.request(decoupled=False, text_input=text) for text in texts])
    assert triton.count("swift_requests_total", outcome="invalid") == 2
    assert triton.count("swift_requests_total", outcome="error") == 1
    assert REQUESTS.values == OUTCOMES and REQUESTS.label == "outcome"


def test_nothing_is_counted_where_metrics_are_off(triton: Any, asked: list[Any]) -> None:
    load(metrics="false").execute([triton.request(decoupled=False, text_input=" ")])
    with pytest.raises(KeyError):
        triton.count("swift_requests_total", outcome="invalid")


@pytest.mark.parametrize("how", ["available", "broken"])
def test_metrics_that_triton_does_not_take_cost_nobody_an_answer(
    triton: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    kinds = pb_utils.MetricFamily if how == "available" else pb_utils.Metric
    monkeypatch.setattr(kinds, how, how == "broken")
    model = load()
    responses = model.execute([triton.request(decoupled=False, text_input=text) for text in (" ", " ", "A")])
    assert [triton.table(response).get("code") for response in responses] == ["INVALID_ARG", "INVALID_ARG", None]
    assert [level for level, _ in triton.log if level != "info"] == ["warn"]


def test_a_failed_load_is_one_sentence_in_tritons_log(triton: Any, asked: list[Any]) -> None:
    with pytest.raises(triton.Exception) as caught:
        load(model="missing")
    assert str(caught.value) == "The model 'missing' does not exist."


def test_it_guards_its_server_until_it_is_unloaded(
    triton: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of the ensemble hang too, where the tokenizer's process has died."""
    told: list[str] = []
    guardian = SimpleNamespace(goodbye=lambda: told.append("bye"))
    monkeypatch.setattr(tokenizer_model, "guard_this_stub", lambda name: told.append(name) or guardian)
    model = load()
    assert told == ["swift_tokenizer"]
    model.finalize()
    assert told == ["swift_tokenizer", "bye"]


def test_a_server_that_others_look_after_is_not_guarded(
    triton: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(tokenizer_model, "guard_this_stub", told.append)
    load(exit_on_failure="false").finalize()
    with pytest.raises(triton.Exception):
        load(model="missing")
    assert told == []


def test_outside_of_triton_there_is_nothing_to_end(triton: Any, asked: list[Any]) -> None:
    model = load()
    model.finalize()
    assert model._guardian is None
