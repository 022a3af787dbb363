"""Does a running server answer? One streamed request, shown as its text arrives."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from swift_backend.serving.endpoints import Endpoints
from swift_backend.serving.launch_error import LaunchError

DEMO_PROMPT = "Explain in two sentences why swifts fly so fast."
_MAX_TOKENS = 48
_TIMEOUT = httpx.Timeout(10, read=120)


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """What one streamed answer took."""

    tokens: int
    seconds: float
    first_token_seconds: float
    drafted: int
    accepted: int
    acceptance_rate: float
    finish_reason: str

    def __str__(self) -> str:
        speed = f"{self.tokens} tokens in {self.seconds:.2f} s ({self.tokens / self.seconds:.1f} tokens/s"
        first = f"first after {self.first_token_seconds:.2f} s), finish reason {self.finish_reason or 'unknown'}"
        drafts = f"{self.accepted} of {self.drafted} drafted tokens accepted ({self.acceptance_rate:.0%})"
        return f"{speed}, {first}; {drafts}"


def stream_demo(http_url: str) -> DemoSummary:
    """Prints a streamed answer to a chat message; raises LaunchError if there is none."""
    start = time.perf_counter()
    events: list[Mapping[str, Any]] = []
    first = 0.0
    for event in _answer(http_url):
        first = first or time.perf_counter() - start
        events.append(event)
        print(event.get("text_output", ""), end="", flush=True)
    print()
    if not events:
        raise LaunchError(f"{http_url} streamed nothing.")
    return summarise(events, time.perf_counter() - start, first)


def summarise(events: Sequence[Mapping[str, Any]], seconds: float, first_token_seconds: float) -> DemoSummary:
    """Adds up what is per response and takes the rest from the last one."""
    last = events[-1]
    return DemoSummary(
        tokens=sum(int(event.get("num_output_tokens", 0)) for event in events),
        seconds=seconds,
        first_token_seconds=first_token_seconds,
        drafted=int(last.get("total_draft_tokens", 0)),
        accepted=int(last.get("total_accepted_draft_tokens", 0)),
        acceptance_rate=float(last.get("acceptance_rate", 0)),
        finish_reason=str(last.get("finish_reason", "")),
    )


def parse_event(line: str) -> Mapping[str, Any] | None:
    """One line of a server-sent event stream: its JSON, or None for a line without data; raises LaunchError."""
    if not line.startswith("data:"):
        return None
    data = line.removeprefix("data:").strip()
    try:
        event: Mapping[str, Any] = json.loads(data)
    except ValueError:
        raise LaunchError(f"The server answered with something else than JSON: {data}") from None
    if "error" in event:
        raise LaunchError(f"The server answered with an error: {event['error']}")
    return event


def _answer(http_url: str) -> Iterator[Mapping[str, Any]]:
    messages = json.dumps([{"role": "user", "content": DEMO_PROMPT}])
    try:
        yield from _stream(http_url, {"messages": messages})
    except _BadRequest:
        # A base model has no chat template.
        yield from _stream(http_url, {"text_input": DEMO_PROMPT})


class _BadRequest(LaunchError):
    """The server refused the request before the first chunk."""


def _stream(http_url: str, prompt: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    url = f"{http_url}/v2/models/swift/generate_stream"
    body = {**prompt, "stream": True, "max_tokens": _MAX_TOKENS}
    try:
        with httpx.stream("POST", url, json=body, timeout=_TIMEOUT, trust_env=False) as response:
            if response.status_code == httpx.codes.BAD_REQUEST:
                raise _BadRequest(response.read().decode(errors="replace"))
            yield from _events(response)
    except httpx.HTTPError as error:
        raise LaunchError(
            f"{url} does not answer ({error or type(error).__name__}). Is `make serve` running?"
        ) from error


def _events(response: httpx.Response) -> Iterator[Mapping[str, Any]]:
    ignored = []
    for line in response.iter_lines():
        event = parse_event(line)
        if event is not None:
            yield event
        else:
            ignored.append(line)
    if response.is_error:
        raise LaunchError(f"The server answered with HTTP {response.status_code}: {' '.join(ignored).strip()}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command behind `make demo`."""
    parser = argparse.ArgumentParser(prog="python -m swift_backend.serving.demo", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--http-port", type=int, default=8000)
    parsed = parser.parse_args(argv)
    try:
        print(stream_demo(Endpoints(parsed.host, parsed.http_port, 0, 0).http_url))
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
