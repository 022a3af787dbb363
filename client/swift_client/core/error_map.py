"""Which exception is a failure? From gRPC's status, HTTP's status, or the words of a message.

A gRPC stream carries an error's message and no code, and Triton's /generate answers 400 to whatever a model refuses; so
for what the server says there is one reading, of its words, and codes are asked only where it says nothing known.
"""

from __future__ import annotations

import json
import re

from swift_client.core.errors import (
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

_PREFIX = re.compile(r"^(?:\[request id: [^]]*\] |in ensemble '[^']*', )+")

# In this order; "internal" comes before "refusal", since an internal error's text may read like one.
_QUEUE_FULL = re.compile(r"the waiting queue is full|exceeds maximum queue size", re.IGNORECASE)
_UNAVAILABLE = re.compile(
    r"^the server is shutting down$|^the engine has failed$|has no available versions|not ready\b"
    r"|server is (?:stopping|shutting down)|server not live|is not ready",
    re.IGNORECASE,
)
_CANCELLED = re.compile(r"^the client cancelled the request$|^request (?:was )?cancell?ed\b", re.IGNORECASE)
_INTERNAL = re.compile(
    r"^request (?:'.*?'|\".*?\"|#\d+): |stub process .* is not healthy|^the engine has stopped$", re.I
)
_REFUSALS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"^exactly one of (?P<field>\w+) and \w+ must be given",
        r"^(?P<field>[\w.\-]+|'.*?')(?:\[[^]]*\])?(?:\.\w+)?:? (?:must|is|takes|holds|gives|needs|a token id) ",
        r"^(?P<field>[a-z]\w*): \S",
        r"for input '(?P<field>\w+)'",
        r"unexpected inference input '(?P<field>[^']*)'",
        r"parameter '(?P<field>[^']*)' has invalid type",
        r"[Rr]equest for unknown (?P<field>model)",
        r"failed to parse the request JSON|expected \d+ inputs but got|inference input|[Uu]nable to parse",
    )
)

_GRPC: dict[str, type[SwiftClientError]] = {
    "OK": ProtocolError,
    "CANCELLED": Cancelled,
    "UNKNOWN": ServerError,
    "INVALID_ARGUMENT": InvalidRequest,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "NOT_FOUND": InvalidRequest,
    "ALREADY_EXISTS": InvalidRequest,
    "PERMISSION_DENIED": InvalidRequest,
    "RESOURCE_EXHAUSTED": Unavailable,
    "FAILED_PRECONDITION": InvalidRequest,
    "ABORTED": Unavailable,
    "OUT_OF_RANGE": InvalidRequest,
    "UNIMPLEMENTED": ProtocolError,
    "INTERNAL": ServerError,
    # Of the call itself, gRPC says this where there is no connection; a model that is not ready says so in words.
    "UNAVAILABLE": ConnectionFailed,
    "DATA_LOSS": ProtocolError,
    "UNAUTHENTICATED": InvalidRequest,
}
_HTTP: dict[int, type[SwiftClientError]] = {
    400: ServerError,  # Triton's answer to every error of a model: only its words tell
    408: DeadlineExceeded,
    429: QueueFull,
    499: Cancelled,
    501: ProtocolError,
    502: Unavailable,
    503: Unavailable,
    504: DeadlineExceeded,
}
_TEXT_LENGTH = 500


def error_of_message(message: str) -> SwiftClientError:
    """What the server means; ServerError where it says nothing that is known."""
    return _known(message) or ServerError(message)


def error_of_grpc(code: str, details: str) -> SwiftClientError:
    """code: the name of a grpc.StatusCode, as in "UNAVAILABLE"; any other is UNKNOWN's."""
    kind = _GRPC.get(code, ServerError)
    if kind is Cancelled:
        return Cancelled(details or "the call was cancelled")
    return _known(details) or kind(f"{details or 'no details'} (gRPC {code})")


def error_of_http(status: int, body: str) -> SwiftClientError:
    """body: JSON, or the event of a stream, with an `error`; or whatever a proxy answers."""
    message = _message_in(body)
    known = _known(message)
    return known or _kind_of_http(status)(f"{message or 'no message'} (HTTP {status})")


def _kind_of_http(status: int) -> type[SwiftClientError]:
    if status in _HTTP:
        return _HTTP[status]
    if 400 <= status < 500:
        return InvalidRequest
    return ServerError if 500 <= status < 600 else ProtocolError


def _known(message: str) -> SwiftClientError | None:
    said = _PREFIX.sub("", message)
    if _QUEUE_FULL.search(said):
        return QueueFull(said)
    if _UNAVAILABLE.search(said):
        return Unavailable(said)
    if _CANCELLED.search(said):
        return Cancelled(said)
    if _INTERNAL.search(said):
        return ServerError(said)
    for refusal in _REFUSALS:
        if match := refusal.search(said):
            return InvalidRequest(said, field=match.groupdict().get("field") or "")
    return None


def _message_in(body: str) -> str:
    text = body.strip().removeprefix("data:").strip()
    try:
        said = json.loads(text)
    except ValueError:
        return text[:_TEXT_LENGTH]
    error = said.get("error") if isinstance(said, dict) else None
    return error if isinstance(error, str) else text[:_TEXT_LENGTH]
