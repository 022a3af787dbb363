"""How is a request withdrawn so that its place is free, and Triton none the worse?

Cancelling the call reaches the engine only where no ensemble is between, and Triton 2.51 keeps for ever the request of
a call that is cancelled just after its last response, or left just after its error. So: `stop` first, by the request's
id; it ends the stream properly, and what is left of it is read. A call that answers, but does not end by itself, is
cancelled. One that has not answered yet, `stop` itself included, is left open until it does, or until the client is
closed: only then is it known where in the server its request is.
"""

from __future__ import annotations

from swift_client.core.errors import DeadlineExceeded
from swift_client.core.request import Request, id_of

# How long the end of a call may take, once the server has said that it comes.
END_SECONDS = 2.0
# How long the server may take to answer `stop`; one that hangs holds up whoever leaves by so much.
STOP_SECONDS = 1.0
# How long a client that is closed waits for calls that were given up before they answered.
LATE_SECONDS = 2.0
# A request that has not answered yet may still be with the tokenizer, where `stop` does not find it: ask again.
_PAUSES = (0.0, 0.02, 0.05, 0.1)


def pauses(started_answering: bool) -> tuple[float, ...]:
    """Seconds before each attempt to stop a request, until one finds it, or fails."""
    return _PAUSES[:1] if started_answering else _PAUSES


def ends_by_itself(found: bool | None, started_answering: bool) -> bool:
    """Whether the call is worth waiting for: it was stopped, or had ended before that; None is a stop that failed."""
    return found is True or (found is False and started_answering)


def no_answer(request: Request, seconds: float) -> DeadlineExceeded:
    """Of a call with one answer, that did not come."""
    return DeadlineExceeded(f"the server did not answer within {seconds:g} s", request_id=id_of(request))
