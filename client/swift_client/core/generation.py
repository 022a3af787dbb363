"""How does one generation stand? Everything that its stream decides, without a socket and with a clock handed in."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import NoReturn

from swift_client.core.decoding import decode_chunk
from swift_client.core.error_map import error_of_message
from swift_client.core.errors import Cancelled, DeadlineExceeded, ProtocolError, SwiftClientError
from swift_client.core.request import InferRequest, Response
from swift_client.core.results import (
    Chunk,
    Completion,
    FinishReason,
    SpeculationStats,
    Timing,
    TokenLogprob,
    Usage,
    joined,
)
from swift_client.core.retry import Retry, may_help
from swift_client.core.timeout import Deadline, Timeout, next_deadline

_log = logging.getLogger("swift_client")
_log.addHandler(logging.NullHandler())  # nothing on stderr unless the program asks for it


@dataclass(slots=True)
class Generation:
    """One request from its call to its end; all times are seconds of one monotonic clock.

    asked → received … received → finished, or failed, or left. over: no chunk comes any more.
    """

    request: InferRequest
    timeout: Timeout
    retry: Retry
    started: float
    finish_reason: FinishReason | None = None
    error: SwiftClientError | None = None
    final: bool = False  # the last response is here: what follows is the end of the call
    _texts: list[str] = field(default_factory=list)
    _token_ids: list[int] = field(default_factory=list)
    _logprobs: list[TokenLogprob] = field(default_factory=list)
    _latest: Chunk = field(default_factory=lambda: Chunk(""))
    _failures: int = 0
    _asked: float = 0.0
    _first_chunk: float | None = None
    _last_chunk: float | None = None

    @property
    def over(self) -> bool:
        """Whether there is a finish reason, or an error."""
        return self.finish_reason is not None or self.error is not None

    @property
    def started_answering(self) -> bool:
        """Whether a chunk has come: from then on nothing is sent again."""
        return self._first_chunk is not None

    @property
    def text(self) -> str:
        """All of it so far."""
        return joined(self._texts)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All of them so far."""
        return tuple(self._token_ids)

    @property
    def usage(self) -> Usage:
        """So far; prompt_tokens is 0 before the first chunk."""
        return Usage(self._latest.usage.prompt_tokens, len(self._token_ids))

    @property
    def speculation(self) -> SpeculationStats:
        """So far."""
        return self._latest.speculation

    @property
    def timing(self) -> Timing:
        """So far; all 0 before the first chunk."""
        if self._first_chunk is None or self._last_chunk is None:
            return Timing()
        return Timing(self._first_chunk - self.started, self._last_chunk - self.started, len(self._token_ids))

    def ask(self, now: float) -> None:
        """The request goes out, for the first time or again."""
        self._asked = now
        self.final = False

    def deadline(self) -> Deadline | None:
        """When the wait for the next response is over."""
        return next_deadline(self.timeout, self.started, self._asked, self._last_chunk)

    def receive(self, response: Response | None, now: float) -> Chunk | None:
        """Take a response in, None for the end of the call; the chunk that it brings, if any.

        Raises the error that it is, or ProtocolError; `fail` says what becomes of that.
        """
        if response is None:
            raise ProtocolError("the stream ended before its last response")
        self.final = self.final or response.final
        if response.error:
            raise error_of_message(response.error)
        if not response.outputs:
            self._check_end()
            return None
        chunk = decode_chunk(response, self._latest.speculation.accepted_draft_tokens)
        self._add(chunk, now)
        if self.final and chunk.finish_reason is None:
            raise ProtocolError("the stream's last response has no finish_reason")
        return chunk

    def fail(self, error: SwiftClientError, now: float, chance: float) -> float:
        """The seconds to wait before the request is sent again; raises the error if it is not."""
        self._failures += 1
        delay = self.retry.delay_after(self._failures, chance)
        total = self.timeout.total
        late = delay is not None and total is not None and now + delay >= self.started + total
        if delay is None or late or self.started_answering or not may_help(error):
            self.end(error)
        _log.warning("request %s: %s; again in %.2f s", self.request.request_id, error.message, delay)
        return delay

    def expire(self, deadline: Deadline) -> DeadlineExceeded:
        """The error of a wait that is over."""
        what = {
            "first_token": "the first token did not come within",
            "between_tokens": "no token came for",
            "total": "the answer was not complete after",
        }[deadline.limit]
        return DeadlineExceeded(f"{what} {deadline.seconds:g} s", limit=deadline.limit)

    def end(self, error: SwiftClientError) -> NoReturn:
        """Nothing comes any more, because of this."""
        error.request_id = error.request_id or self.request.request_id
        self.error = error
        _log.info("request %s: %s: %s", self.request.request_id, type(error).__name__, error.message)
        raise error

    def leave(self) -> None:
        """The caller wants no more of it: what was read so far is the answer."""
        if not self.over:
            _log.info("request %s: left by the caller", self.request.request_id)
            self.finish_reason = "cancelled"

    def closed(self) -> Cancelled:
        """For whoever asks a stream that was left."""
        return Cancelled("the stream was closed", request_id=self.request.request_id)

    def completion(self) -> Completion:
        """The whole, once it is finished; raises what it ended with."""
        if self.error is not None:
            raise self.error
        if self.finish_reason is None:
            raise ProtocolError("the stream is not finished", request_id=self.request.request_id)
        return Completion(
            self.text,
            self.token_ids,
            self.finish_reason,
            self.usage,
            self.speculation,
            self.timing,
            self.request.request_id,
            tuple(self._logprobs),
            self._latest.cumulative_logprob,
        )

    def _check_end(self) -> None:
        """Of a response without outputs: FINAL by itself, after the last data."""
        if self.final and not self.over:
            raise ProtocolError("the stream ended before its last response")

    def _add(self, chunk: Chunk, now: float) -> None:
        self._texts.append(chunk.text)
        self._token_ids += chunk.token_ids
        self._logprobs += chunk.logprobs
        self._latest = replace(chunk, text="", token_ids=(), logprobs=())
        if self._first_chunk is None:
            self._first_chunk = now
        self._last_chunk = now
        self.finish_reason = chunk.finish_reason
