"""What was said to one client so far, and is it over? The state object that guarantees exactly one FINAL."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import triton_python_backend_utils as pb_utils

from swift_backend.errors import Cancelled
from swift_backend.sequence import Output
from swift_backend.serving.answer import merge, output_arrays
from swift_backend.serving.tensors import Array
from swift_backend.serving.triton_errors import triton_error
from swift_backend.serving.triton_request import inference_response


@dataclass(slots=True, eq=False)
class Reply:
    """The way back to one client. What it sends is sent by one thread at a time, its owner; see Responder.

    request_id: the engine's, unique. client_id: the client's, may be empty or used twice.
    stream: one response per delivery; otherwise everything waits in `held` for the one and only response.
    prompt_text: called once, before the first text, where the client wants its prompt back.
    token_text: how a token reads, where the client wants logprobs.
    pending: outputs that nobody looked at yet, the last of all of them if `over`. paused: its request is held until
        they are sent, since paused_at. withdrawn: its request was cancelled, perhaps before the engine knew it.
    """

    request_id: str
    sender: Any  # pb_utils.InferenceResponseSender
    client_id: str = ""
    stream: bool = False
    prompt_text: Callable[[], str] | None = None
    token_text: Callable[[int], str] | None = None
    held: list[Output] = field(default_factory=list)
    client_left: bool = False
    failure: Exception | None = None
    poll_at: float = 0.0
    pending: deque[Output] = field(default_factory=deque)
    owned: bool = False
    over: bool = False
    paused: bool = False
    paused_at: float = 0.0
    withdrawn: bool = False
    closed: bool = False

    @property
    def label(self) -> str:
        """The request's name in messages and in the log."""
        return repr(self.client_id) if self.client_id else f"#{self.request_id}"

    def deliver(self, outputs: list[Output]) -> bool:
        """Take the engine's news, send what is due, and tell whether something was sent."""
        last = outputs[-1]
        if self.failure is None:
            self.held += outputs
        if not last.finished and (not self.stream or self.failure is not None):
            return False
        if last.finished:
            self._end(last)
        else:
            self._send(self._news())
        return True

    def finish(self, arrays: dict[str, Array]) -> None:
        """Send the last data; FINAL rides on it."""
        response = inference_response(arrays)
        self.closed = True
        self.sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def fail(self, error: Exception) -> None:
        """Send an error as the last response."""
        response = pb_utils.InferenceResponse(error=triton_error(error, self.label))
        self.closed = True
        self.sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Ask Triton whether the client left; a round trip to the server's process."""
        self.client_left = self.client_left or self.sender.is_cancelled()
        return self.client_left

    def _end(self, last: Output) -> None:
        error = self.failure or last.error
        if self.client_left and last.finish_reason == "cancelled":
            error = Cancelled("the client cancelled the request")
        if error is None:
            self.finish(self._news())
            return
        if self.stream and any(output.token_ids or output.text for output in self.held):
            self._send(self._news(without_end=True))
        self.fail(error)

    def _news(self, without_end: bool = False) -> dict[str, Array]:
        """Everything held back, as one response's arrays."""
        news = merge(self.held)
        self.held.clear()
        if without_end:
            news = replace(news, finish_reason="", error=None)
        if self.prompt_text is not None:
            news = replace(news, text=self.prompt_text() + news.text)
            self.prompt_text = None
        return output_arrays(news, self.token_text)

    def _send(self, arrays: dict[str, Array]) -> None:
        self.sender.send(inference_response(arrays))
