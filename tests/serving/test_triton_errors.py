"""Every exception has a code, and the message never breaks the call that carries it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from swift_backend import errors
from swift_backend.serving.triton_errors import error_code, triton_error

CODES = {
    "SwiftError": "INTERNAL",
    "ModelLoadError": "INTERNAL",
    "ConfigError": "INTERNAL",
    "InvalidRequest": "INVALID_ARG",
    "Unavailable": "UNAVAILABLE",
    "Cancelled": "CANCELLED",
    "EngineFailure": "INTERNAL",
    "RankFailure": "INTERNAL",
}


def tree(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


def sample(kind: type[Exception]) -> Exception:
    return kind("field", "message") if issubclass(kind, errors.InvalidRequest) else kind("message")


def test_every_exception_of_the_tree_has_the_code_we_mean() -> None:
    ours = [kind for kind in tree(errors.SwiftError) if kind.__module__ == "swift_backend.errors"]
    assert {kind.__name__: error_code(sample(kind)).name for kind in ours} == CODES


@pytest.mark.parametrize("error", [KeyError("x"), OSError("disk"), MemoryError(), ZeroDivisionError()])
def test_foreign_exceptions_are_our_bugs(error: Exception) -> None:
    told = triton_error(error, "'r1'")
    assert told.code().name == "INTERNAL"
    assert told.message() == f"request 'r1': internal error ({type(error).__name__})"


def test_internal_errors_carry_the_request_id_and_others_do_not() -> None:
    assert triton_error(errors.EngineFailure("it broke"), "#3").message() == "request #3: it broke"
    assert triton_error(errors.InvalidRequest("top_p", "top_p must be …"), "#3").message() == "top_p must be …"


def test_a_message_is_short_and_valid_utf8(triton: Any) -> None:
    told = triton_error(errors.InvalidRequest("stop", "stop \ud800" + "x" * 5000), "#1").message()
    assert told.startswith("stop \\ud800xxx") and told.endswith("x…") and len(told) < 1100
