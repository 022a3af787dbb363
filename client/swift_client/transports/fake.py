"""What answers in tests that should not need a server? A script."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swift_client.core.errors import Cancelled, SwiftClientError
from swift_client.core.request import InferRequest, Question, Request, Response
from swift_client.transports.answered import Answered, AsyncAnswered
from swift_client.transports.protocol import AsyncExchange, Exchange, Limits

_PROMPT_TOKENS = 3


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing comes for so many seconds.

    >>> Pause(0.5).seconds
    0.5
    """

    seconds: float


Step = str | Response | Pause | SwiftClientError


def fake_response(
    text: str = "",
    token_ids: Sequence[int] = (),
    finish_reason: str = "",
    *,
    final: bool | None = None,
    drafted: int = 0,
    accepted: int = 0,
    **outputs: Any,
) -> Response:
    """A response as the server makes it; final: with a finish reason, unless said otherwise; outputs replace others."""
    all_of_them = {
        "text_output": text,
        "output_ids": list(token_ids),
        "finish_reason": finish_reason,
        "num_input_tokens": _PROMPT_TOKENS,
        "num_output_tokens": len(token_ids),
        "cumulative_logprob": 0.0,
        "logprobs": "",
        "total_draft_tokens": drafted,
        "total_accepted_draft_tokens": accepted,
        "acceptance_rate": accepted / drafted if drafted else 0.0,
    }
    return Response(all_of_them | outputs, bool(finish_reason) if final is None else final)


class FakeTransport:
    """A server for your own tests, for both clients: the n-th request gets the n-th answer, later ones the last.

    An answer is a list of steps: a text is a chunk of one token, the last of which finishes with "stop"; a Pause, an
    exception of this package to raise, or a whole Response (fake_response makes one) do what they say. `requests` are
    those that came; the `stop` control, and with it leaving a stream early, works as on the server.

    >>> from swift_client import QueueFull, Retry, SwiftClient
    >>> transport = FakeTransport([QueueFull("the waiting queue is full: 4 of 4 requests wait")], ["Hel", "lo"])
    >>> with SwiftClient(transport=transport, retry=Retry(delay=0.0)) as client:
    ...     client.generate("Hi", temperature=0.5).text
    'Hello'
    >>> transport.requests[-1].inputs["sampling_parameters"]
    '{"temperature": 0.5}'
    """

    def __init__(self, *answers: Sequence[Step], ready: bool = True, metrics_page: str = "") -> None:
        self._answers = [_responses(steps) for steps in answers] or [_responses(["Hello", " there"])]
        self._ready = ready
        self._metrics_page = metrics_page
        self._lock = threading.Lock()
        self._open: list[_Script] = []
        self.requests: list[InferRequest] = []
        self.stopped: list[str] = []

    def open(self, request: Request, limits: Limits) -> Exchange:
        script = self._begin(request)
        return Answered(script) if isinstance(script, Response) else _FakeExchange(script)

    def close(self) -> None:
        with self._lock:
            for script in self._open:
                script.stop()

    async def open_async(self, request: Request, limits: Limits) -> AsyncExchange:
        script = self._begin(request)
        return AsyncAnswered(script) if isinstance(script, Response) else _AsyncFakeExchange(script)

    async def close_async(self) -> None:
        self.close()

    @property
    def running(self) -> int:
        """Requests whose answers are not read to their end, nor let go of."""
        with self._lock:
            self._open = [script for script in self._open if not script.ended]
            return len(self._open)

    def _begin(self, request: Request) -> _Script | Response:
        if isinstance(request, Question):
            return Response(self._answer(request), final=True)
        with self._lock:
            if request.inputs.get("stop") is True:
                return self._stop(request.request_id)
            steps = self._answers[min(len(self.requests), len(self._answers) - 1)]
            self.requests.append(request)
            script = _Script(request.request_id, steps)
            self._open.append(script)
            return script

    def _stop(self, request_id: str) -> Response:
        self.stopped.append(request_id)
        found = [one for one in self._open if one.request_id == request_id and not one.ended]
        for script in found:
            script.stop()
        return Response({"cancelled": bool(found)}, final=True)

    def _answer(self, question: Question) -> Mapping[str, Any]:
        tensors: dict[str, Any] = {"inputs": [], "outputs": []}
        return {
            "server": {"name": "fake", "version": "0", "extensions": []},
            "model": {"name": question.model, "platform": "fake", "versions": ["1"], **tensors},
            "metrics": {"text": self._metrics_page},
        }.get(question.about, {"ready": self._ready})


class _Script:
    """One answer while it is played; whoever stops it may be on another thread."""

    def __init__(self, request_id: str, steps: Sequence[Response | Pause | SwiftClientError]) -> None:
        self.request_id = request_id
        self.ended = False
        self._steps = list(steps)
        self._aborted = False
        self._disturbed = threading.Event()

    def stop(self) -> None:
        """As the server does: the next response is the last."""
        if self._steps:
            self._steps = [fake_response(finish_reason="cancelled")]
        self._disturbed.set()

    def abort(self) -> None:
        self._aborted = self.ended = True
        self._steps = []
        self._disturbed.set()

    def wait(self, seconds: float) -> bool:
        """Whether the pause was disturbed."""
        return self._disturbed.wait(seconds)

    def next(self) -> Response | Pause | None:
        """The next step, None after the last."""
        if self._aborted:
            raise Cancelled("the call was cancelled")
        if not self._steps:
            self.ended = True
            return None
        step = self._steps.pop(0)
        if isinstance(step, SwiftClientError):
            self.ended = True
            self._steps = []
            raise _fresh(step)
        return step


class _FakeExchange:
    def __init__(self, script: _Script) -> None:
        self._script = script

    def receive(self) -> Response | None:
        while isinstance(step := self._script.next(), Pause):
            self._script.wait(step.seconds)
        return step

    def abort(self) -> None:
        self._script.abort()

    def close(self) -> None:
        self._script.ended = True


class _AsyncFakeExchange:
    LOOK_SECONDS = 0.01

    def __init__(self, script: _Script) -> None:
        self._script = script

    async def receive(self) -> Response | None:
        while isinstance(step := self._script.next(), Pause):
            remaining = step.seconds
            while remaining > 0 and not self._script.wait(0):
                await asyncio.sleep(min(self.LOOK_SECONDS, remaining))
                remaining -= self.LOOK_SECONDS
        return step

    async def close(self) -> None:
        self._script.abort()


def _responses(steps: Sequence[Step]) -> list[Response | Pause | SwiftClientError]:
    """Texts as responses, of one token each."""
    made: list[Response | Pause | SwiftClientError] = []
    for position, step in enumerate(steps):
        if isinstance(step, str):
            last = position == len(steps) - 1
            made.append(fake_response(step, [position], "stop" if last else ""))
        else:
            made.append(step)
    return made


def _fresh(error: SwiftClientError) -> SwiftClientError:
    """The same error for another request."""
    copy = type(error)(error.message)
    copy.__dict__.update(error.__dict__)
    return copy
