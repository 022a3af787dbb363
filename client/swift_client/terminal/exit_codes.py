"""With which exit code does swift-generate end?"""

from __future__ import annotations

from swift_client.core.errors import (
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    ProtocolError,
    ServerError,
    SwiftClientError,
    Unavailable,
)
from swift_client.core.results import FinishReason

CODES: dict[type[SwiftClientError], int] = {
    ServerError: 1,
    InvalidRequest: 2,
    Unavailable: 3,
    DeadlineExceeded: 4,
    ConnectionFailed: 5,
    ProtocolError: 6,
    Cancelled: 130,
}
BROKEN_PIPE = 141
EXPLANATION = """\
exit codes:
  0    the answer is complete (stop or length)
  1    the server failed
  2    the request, or an option, is wrong
  3    the server has no room, or is stopping
  4    a deadline passed, --timeout's or the server's timeout_ms
  5    there is no connection
  6    what answers is no SWIFT server
  130  cancelled, by Ctrl-C or on the server
  141  nobody reads the output any more
"""


def code_of_error(error: SwiftClientError) -> int:
    """Of the nearest ancestor that has one."""
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), 1)


def code_of_end(reason: FinishReason) -> int:
    """Of an answer that came."""
    return {"stop": 0, "length": 0, "timeout": CODES[DeadlineExceeded], "cancelled": CODES[Cancelled]}[reason]
