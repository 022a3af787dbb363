"""How is a failure told to the client? The one place that maps our exceptions to Triton's error codes."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from swift_backend.errors import Cancelled, InvalidRequest, SwiftError, Unavailable

MAX_MESSAGE = 1000


def error_code(error: BaseException) -> Any:
    """The TritonError code of any exception; whatever isn't known to be somebody else's doing is INTERNAL."""
    for kind, code in (
        (InvalidRequest, pb_utils.TritonError.INVALID_ARG),
        (Unavailable, pb_utils.TritonError.UNAVAILABLE),
        (Cancelled, pb_utils.TritonError.CANCELLED),
    ):
        if isinstance(error, kind):
            return code
    return pb_utils.TritonError.INTERNAL


def outcome_of(error: BaseException) -> str:
    """What the metrics call a request that was refused with this error."""
    outcomes = {pb_utils.TritonError.INVALID_ARG: "invalid", pb_utils.TritonError.UNAVAILABLE: "unavailable"}
    return outcomes.get(error_code(error), "error")


def triton_error(error: BaseException, request_id: str) -> pb_utils.TritonError:
    """The error as the client sees it; internal ones carry the request's id, so that the log can be searched."""
    code = error_code(error)
    message = _sentence(error)
    if code == pb_utils.TritonError.INTERNAL:
        message = f"request {request_id}: {message}"
    return pb_utils.TritonError(printable(_shortened(message)), code)


def _sentence(error: BaseException) -> str:
    """Our own exceptions speak for themselves; of others only the kind is told, their text may hold anything."""
    return str(error) if isinstance(error, SwiftError) else f"internal error ({type(error).__name__})"


def printable(text: str) -> str:
    """Valid UTF-8 even where the text quotes a client's lone surrogate; Triton's calls take no other."""
    return text.encode("utf-8", "backslashreplace").decode()


def _shortened(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"
