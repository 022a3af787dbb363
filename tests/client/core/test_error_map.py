"""Every failure has its exception: the map is total over gRPC's codes, HTTP's statuses and the server's messages."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import grpc
import pytest
import swift_client
from hypothesis import given
from hypothesis import strategies as st
from swift_client import (
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    ProtocolError,
    QueueFull,
    ServerError,
    SwiftClientError,
    Unavailable,
)
from swift_client.core.error_map import error_of_grpc, error_of_http, error_of_message

from swift_backend.errors import InvalidRequest as Refusal
from swift_backend.params import SamplingParams
from swift_backend.request_keys import KEYS

BACKEND = Path(__file__).resolve().parents[3] / "swift_backend"
# What a request that comes over the wire can meet with.
ON_THE_WAY = [
    "admission", "params", "request_keys", "serving/strict_json", "serving/tensors", "serving/tokenizer_model",
    "serving/triton_request", "text/tokenizer",
]  # fmt: skip

GRPC = {
    "OK": ProtocolError, "CANCELLED": Cancelled, "UNKNOWN": ServerError, "INVALID_ARGUMENT": InvalidRequest,
    "DEADLINE_EXCEEDED": DeadlineExceeded, "NOT_FOUND": InvalidRequest, "ALREADY_EXISTS": InvalidRequest,
    "PERMISSION_DENIED": InvalidRequest, "RESOURCE_EXHAUSTED": Unavailable, "FAILED_PRECONDITION": InvalidRequest,
    "ABORTED": Unavailable, "OUT_OF_RANGE": InvalidRequest, "UNIMPLEMENTED": ProtocolError, "INTERNAL": ServerError,
    "UNAVAILABLE": ConnectionFailed, "DATA_LOSS": ProtocolError, "UNAUTHENTICATED": InvalidRequest,
}  # fmt: skip


@pytest.mark.parametrize("code", [code.name for code in grpc.StatusCode])
def test_every_code_of_grpc(code: str) -> None:
    error = error_of_grpc(code, "no words that are known")
    assert type(error) is GRPC[code] and "no words that are known" in str(error)
    assert type(error_of_grpc(code, "")) is GRPC[code]


def test_what_is_not_known_yet() -> None:
    assert type(error_of_message("something that nobody has heard of")) is ServerError
    assert type(error_of_grpc("TEAPOT", "x")) is ServerError


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (100, ProtocolError), (204, ProtocolError), (302, ProtocolError), (401, InvalidRequest), (403, InvalidRequest),
        (404, InvalidRequest), (408, DeadlineExceeded), (413, InvalidRequest), (429, QueueFull), (499, Cancelled),
        (500, ServerError), (501, ProtocolError), (502, Unavailable), (503, Unavailable), (504, DeadlineExceeded),
        (599, ServerError), (600, ProtocolError), (400, ServerError),
    ],
)  # fmt: skip
def test_statuses_of_http(status: int, expected: type[SwiftClientError]) -> None:
    for body in ("<html>no</html>", "", '{"error": "no words that are known"}', "[1]", '{"error": 3}'):
        assert type(error_of_http(status, body)) is expected


@given(st.integers(100, 999), st.text())
def test_whatever_http_says_is_one_of_ours(status: int, body: str) -> None:
    assert isinstance(error_of_http(status, body), SwiftClientError)


@given(st.text())
def test_whatever_a_message_says_is_one_of_ours(message: str) -> None:
    assert isinstance(error_of_message(message), SwiftClientError)


MESSAGES = [
    ("in ensemble 'swift', temperature must be in [0, 5], got 9", InvalidRequest, "temperature"),
    ("the waiting queue is full: 4 of 4 requests wait", QueueFull, None),
    ("in ensemble 'swift', the waiting queue is full: 1 of 1 requests wait", QueueFull, None),
    ("[request id: a] Exceeds maximum queue size", QueueFull, None),
    ("the server is shutting down", Unavailable, None),
    ("the engine has failed", Unavailable, None),
    ("Request for unknown model: 'swift' has no available versions", Unavailable, None),
    ("the client cancelled the request", Cancelled, None),
    ("in ensemble 'swift', the client cancelled the request", Cancelled, None),
    ("request 'r-1': the engine has failed (OutOfMemoryError); the server's log says more", ServerError, None),
    ("request #17: temperature must be in trouble", ServerError, None),
    ("request \"it's\": internal error (KeyError)", ServerError, None),
    ("Failed to process the request(s) for model 'x', message: Stub process 'x' is not healthy.", ServerError, None),
    ("the engine has stopped", ServerError, None),
    ("[request id: abc] unexpected shape for input 'text_input' for model 'swift'. Expected [1]", InvalidRequest,
     "text_input"),
    ("unexpected inference input 'foo' for model 'swift'", InvalidRequest, "foo"),
    ("parameter 'stop' has invalid type. It should be either 'int', 'bool', or 'string'.", InvalidRequest, "stop"),
    ("Request for unknown model: 'nope' is not found", InvalidRequest, "model"),
    ("failed to parse the request JSON buffer: Missing a closing quotation mark in string. at 12", InvalidRequest, ""),
]  # fmt: skip


@pytest.mark.parametrize(("message", "expected", "field"), MESSAGES)
def test_messages_that_are_known(message: str, expected: type[SwiftClientError], field: str | None) -> None:
    """The same whichever way it comes: in a stream, and with whatever status."""
    body = json.dumps({"error": message})
    for error in (error_of_message(message), error_of_http(400, body), error_of_http(500, f"data: {body}\n\n")):
        assert type(error) is expected
        assert getattr(error, "field", None) == field
        assert "in ensemble" not in error.message and "request id:" not in error.message


WRONG = {"logit_bias": {"3": 1000}, "stop": 3, "bad_words": 3, "stop_token_ids": "x", "speculation": "fast",
         "ignore_eos": "maybe", "include_stop_str_in_output": 3, "skip_special_tokens": 3}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_every_sampling_key_that_is_wrong_names_itself(name: str) -> None:
    """The messages are the server's own."""
    for value in (WRONG.get(name, "x"), WRONG.get(name, -(10**12)), WRONG.get(name, [1])):
        with pytest.raises(Refusal) as refused:
            SamplingParams.from_mapping({name: value})
        error = error_of_message(f"in ensemble 'swift', {refused.value}")
        assert isinstance(error, InvalidRequest)
        assert error.field == refused.value.field == name


def refusals() -> list[tuple[str, str]]:
    """(field, message) of every `InvalidRequest(…)` that the server's code has for a request, with stand-ins."""
    found = []
    for name in ON_THE_WAY:
        for node in ast.walk(ast.parse((BACKEND / f"{name}.py").read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "InvalidRequest":
                found.append((sample(node.args[0]), sample(node.args[1])))
    return [(field, message if field in message else f"{field}: {message}") for field, message in found]


def sample(node: ast.expr) -> str:
    """A string as it may look: names of fields become `some_key`, everything else a number."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(sample(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return sample(node.value)
    text = ast.unparse(node)
    return "some_key" if re.match(r"^(name|key|field|short)\b", text) else "7"


@pytest.mark.parametrize(("field", "message"), refusals())
def test_every_refusal_in_the_servers_code_is_known(field: str, message: str) -> None:
    if message == "7":  # built elsewhere: max_draft_tokens must be in …
        message = f"{field} must be in [0, 7], got 8"
    error = error_of_message(message)
    assert isinstance(error, InvalidRequest)
    assert error.field == field


def test_the_refusals_were_found() -> None:
    assert len(refusals()) > 45


def test_the_tree_is_the_one_that_is_drawn() -> None:
    drawn = re.findall(r"[├└]── (\w+)", swift_client.core.errors.__doc__ or "")
    kinds = [kind for kind in vars(swift_client).values() if isinstance(kind, type)]
    assert {"SwiftClientError", *drawn} == {kind.__name__ for kind in kinds if issubclass(kind, SwiftClientError)}
