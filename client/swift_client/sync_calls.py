"""How is one request sent and its answer waited for? With plain calls."""

from __future__ import annotations

import contextlib
from time import monotonic

from swift_client.core.errors import DeadlineExceeded, ProtocolError, SwiftClientError
from swift_client.core.request import InferRequest, Request, Response
from swift_client.core.timeout import Deadline
from swift_client.transports.protocol import Limits, Transport, WaitIsOver
from swift_client.transports.watch import Watch


class Call:
    """One exchange and its alarm. Opening it, and waiting, raise TimeoutError when the deadline has passed."""

    def __init__(
        self, transport: Transport, watch: Watch, request: Request, connect: float | None, deadline: Deadline | None
    ) -> None:
        wait = None if deadline is None else max(0.0, deadline.at - monotonic())
        try:
            self._exchange = transport.open(request, Limits(connect, wait))
        except WaitIsOver:
            raise TimeoutError from None
        self._watch = watch
        self._alarm = watch.add(self._exchange.abort)
        self._interrupted = False

    def receive(self, deadline: Deadline | None) -> Response | None:
        """The next response, None at the end."""
        self._watch.set(self._alarm, deadline.at if deadline else None)
        try:
            return self._exchange.receive()
        except SwiftClientError:
            if self._alarm.rang:
                raise TimeoutError from None
            raise
        except BaseException:  # a wait that Ctrl-C interrupts cannot be begun again
            self._interrupted = True
            raise
        finally:
            self._alarm.at = None

    def drain(self, seconds: float) -> None:
        """Read on to the end of the call, for so long at most."""
        end = Deadline(monotonic() + seconds, "total", seconds)
        with contextlib.suppress(SwiftClientError, TimeoutError):
            while not self._interrupted and self.receive(end) is not None:
                pass

    def abort(self) -> None:
        """From any thread: whoever waits gets an error."""
        self._exchange.abort()

    def close(self) -> None:
        """Cancel the call if it has not ended."""
        self._watch.remove(self._alarm)
        self._exchange.close()


def ask(transport: Transport, watch: Watch, request: Request, connect: float | None, seconds: float) -> Response:
    """The answer, once its call has ended; DeadlineExceeded after so many seconds."""
    deadline = Deadline(monotonic() + seconds, "total", seconds)
    try:
        with contextlib.closing(Call(transport, watch, request, connect, deadline)) as call:
            first = rest = call.receive(deadline)
            while rest is not None:
                rest = call.receive(deadline)
        if first is None:
            raise ProtocolError("the server gave no answer")
    except TimeoutError:
        raise DeadlineExceeded(f"the server did not answer within {seconds:g} s", request_id=_id(request)) from None
    except SwiftClientError as error:
        error.request_id = error.request_id or _id(request)
        raise
    return first


def _id(request: Request) -> str:
    return request.request_id if isinstance(request, InferRequest) else ""
