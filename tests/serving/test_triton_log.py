"""The engine's log lines reach Triton's log, each at its level."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import triton_python_backend_utils as pb_utils

from swift_backend.serving.triton_log import TritonHandler, log_through_triton


@pytest.fixture
def log(triton: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The package's own logger, as if nobody had used it yet."""
    logger = logging.getLogger("swift_backend")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    log_through_triton()
    yield logging.getLogger("swift_backend.engine")


def test_each_level_has_its_place(triton: Any, log: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("swift_backend"), "level", logging.INFO)
    log.manager._clear_cache()  # type: ignore[attr-defined]
    log.info("a %s", "note")
    log.warning("careful")
    log.error("wrong")
    log.critical("worse")
    assert triton.log == [("info", "a note"), ("warn", "careful"), ("error", "wrong"), ("error", "worse")]
    log.manager._clear_cache()  # type: ignore[attr-defined]


def test_what_is_not_important_costs_no_round_trip(triton: Any, log: logging.Logger) -> None:
    log.info("a note")
    log.debug("a detail")
    assert triton.log == []


def test_a_traceback_comes_along(triton: Any, log: logging.Logger) -> None:
    try:
        raise ValueError("the cause")
    except ValueError as error:
        log.error("request %s failed", "'job'", exc_info=error)
    [(level, message)] = triton.log
    assert level == "error" and message.startswith("request 'job' failed\nTraceback (most recent call last):")
    assert message.endswith("ValueError: the cause")


def test_text_that_is_no_utf8_is_made_printable(triton: Any) -> None:
    """Given to the handler itself: pytest would capture the line, and xdist cannot send it."""
    TritonHandler().emit(logging.makeLogRecord({"msg": "request %s failed", "args": ("\ud800",), "levelno": 40}))
    assert triton.log == [("error", "request \\ud800 failed")]


def test_once_is_enough(triton: Any, log: logging.Logger) -> None:
    log_through_triton()
    log.error("wrong")
    assert triton.log == [("error", "wrong")]
    handlers = logging.getLogger("swift_backend").handlers
    assert sum(isinstance(handler, TritonHandler) for handler in handlers) == 1


def test_lines_are_not_written_twice(triton: Any, log: logging.Logger) -> None:
    seen: list[logging.LogRecord] = []
    root = logging.Handler()
    root.emit = seen.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(root)
    log.error("wrong")
    logging.getLogger().removeHandler(root)
    assert (seen, triton.log) == ([], [("error", "wrong")])


def test_a_log_that_cannot_be_written_fails_nobody(
    triton: Any, log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(message: str) -> None:
        raise triton.Exception("no server")

    monkeypatch.setattr(pb_utils.Logger, "log_error", gone)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    log.error("wrong")
    assert triton.log == []
