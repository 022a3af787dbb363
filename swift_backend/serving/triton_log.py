"""Where do the engine's log lines go? Into Triton's log."""

from __future__ import annotations

import logging

import triton_python_backend_utils as pb_utils

from swift_backend.serving.triton_errors import printable

PACKAGE = "swift_backend"


class TritonHandler(logging.Handler):
    """Hands records of the logging module to Triton's Logger; each is a round trip to the server's process."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, with its traceback."""
        try:
            message = printable(self.format(record))
            if record.levelno >= logging.ERROR:
                pb_utils.Logger.log_error(message)
            elif record.levelno >= logging.WARNING:
                pb_utils.Logger.log_warn(message)
            else:
                pb_utils.Logger.log_info(message)
        except Exception:
            self.handleError(record)


def log_through_triton() -> None:
    """From now on; once is enough for a process."""
    log = logging.getLogger(PACKAGE)
    if not any(isinstance(handler, TritonHandler) for handler in log.handlers):
        log.addHandler(TritonHandler())
        log.propagate = False
