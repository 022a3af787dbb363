"""The exceptions of the client, the same whichever way a server is reached.

SwiftClientError
├── InvalidRequest      the request is wrong; carries the field
├── Unavailable         the server is stopping, or has no such model ready
│   └── QueueFull       … or has as many waiting requests as it takes
├── Cancelled           the request was withdrawn, or its stream or client closed
├── DeadlineExceeded    a limit of the call's Timeout is over; carries which one
├── ConnectionFailed    there is no way to the server, or it broke
├── ProtocolError       what answers does not answer as a SWIFT server does
└── ServerError         the server failed; its log says more
"""

from __future__ import annotations


class SwiftClientError(Exception):
    """Base of everything this package raises on purpose.

    Attributes: message, without the id; request_id, "" where no request was made.

    >>> error = QueueFull("the waiting queue is full: 4 of 4 requests wait", request_id="r-1")
    >>> isinstance(error, Unavailable), error.request_id
    (True, 'r-1')
    >>> print(error)
    the waiting queue is full: 4 of 4 requests wait (request r-1)
    """

    def __init__(self, message: str, *, request_id: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id

    def __str__(self) -> str:
        return f"{self.message} (request {self.request_id})" if self.request_id else self.message


class InvalidRequest(SwiftClientError):
    """The request is wrong, and would be every time; the message is the server's and names value and range.

    Attributes: field, the contract's name of the input or key at fault, "" where the server names none.

    >>> InvalidRequest("temperature must be in [0, 5], got 9", field="temperature").field
    'temperature'
    """

    def __init__(self, message: str, *, field: str = "", request_id: str = "") -> None:
        super().__init__(message, request_id=request_id)
        self.field = field


class Unavailable(SwiftClientError):
    """The server cannot take the request now; later, or another one, may.

    >>> str(Unavailable("the server is shutting down"))
    'the server is shutting down'
    """


class QueueFull(Unavailable):
    """As many requests wait as the server lets wait.

    >>> issubclass(QueueFull, Unavailable)
    True
    """


class Cancelled(SwiftClientError):
    """The request was withdrawn before its end: by the server's `stop`, or by closing the stream or the client.

    >>> str(Cancelled("the stream was closed", request_id="r-2"))
    'the stream was closed (request r-2)'
    """


class DeadlineExceeded(SwiftClientError):
    """One limit of the call's Timeout is over; the request was withdrawn from the server.

    Attributes: limit, the field of Timeout ("first_token", "between_tokens" or "total").

    >>> DeadlineExceeded("no token within 60 s", limit="first_token").limit
    'first_token'
    """

    def __init__(self, message: str, *, limit: str = "total", request_id: str = "") -> None:
        super().__init__(message, request_id=request_id)
        self.limit = limit


class ConnectionFailed(SwiftClientError):
    """There is no way to the server, or it broke; `connect` of the Timeout ends in this, too.

    >>> str(ConnectionFailed("connection refused"))
    'connection refused'
    """


class ProtocolError(SwiftClientError):
    """What answers does not speak as a SWIFT server does.

    >>> str(ProtocolError("the stream ended before its last response"))
    'the stream ended before its last response'
    """


class ServerError(SwiftClientError):
    """The server failed, or said something that this client does not know; its log says more.

    >>> str(ServerError("request 'r-3': the engine has failed (OutOfMemoryError)"))
    "request 'r-3': the engine has failed (OutOfMemoryError)"
    """
