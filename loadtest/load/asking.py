"""How is one request made and timed? A stream of the client's, chunk by chunk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from swift_client import Retry, Stream, SwiftClient, SwiftClientError

from loadtest.load.outcome import WITHDRAWN, Outcome


def client_of(url: str, **more: Any) -> SwiftClient:
    """What all users ask with. Nothing is sent again: a refusal is a figure here, and a second try would hide it."""
    return SwiftClient(url, retry=Retry(limit=0), **more)


def asked(prompt: str, prompt_format: str) -> dict[str, Any]:
    """A prompt as the client takes it: a user's message (chat), or the text as it is (raw)."""
    return {"messages": [{"role": "user", "content": prompt}]} if prompt_format == "chat" else {"prompt": prompt}


def ask(
    client: SwiftClient,
    user: int,
    question: dict[str, Any],
    options: dict[str, Any],
    on_chunk: Callable[[], None] = lambda: None,
    on_withdrawn: Callable[[Outcome], None] = lambda outcome: None,
) -> Outcome:
    """The outcome, an error of the client's among them; question: see asked; on_chunk is called after each chunk.

    Where on_chunk or the caller's thread is ended from outside, the request is withdrawn on the way out, and
    on_withdrawn gets what came of it.
    """
    outcome, began = Outcome(user, time.time()), time.perf_counter()
    stream = client.stream(**question, **options)
    outcome.request_id = stream.request_id
    try:
        with stream:
            for chunk in stream:
                outcome.arrivals.append((time.perf_counter() - began, len(chunk.token_ids)))
                on_chunk()
    except SwiftClientError as error:
        outcome.error = f"{type(error).__name__}: {error}".replace(f" (request {stream.request_id})", "")
    except BaseException:
        outcome.error = WITHDRAWN
        on_withdrawn(_completed(outcome, stream, began))
        raise
    return _completed(outcome, stream, began)


def _completed(outcome: Outcome, stream: Stream, began: float) -> Outcome:
    """With what the stream counted."""
    outcome.total = time.perf_counter() - began
    outcome.tokens = stream.usage.completion_tokens
    outcome.prompt_tokens = stream.usage.prompt_tokens
    outcome.draft_tokens = stream.speculation.draft_tokens
    outcome.accepted_draft_tokens = stream.speculation.accepted_draft_tokens
    outcome.finish_reason = "" if outcome.error else stream.finish_reason or ""
    return outcome
