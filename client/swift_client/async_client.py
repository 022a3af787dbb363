"""The client on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import Any

from typing_extensions import Unpack

from swift_client.async_calls import AsyncCalls
from swift_client.async_stream import AsyncStream
from swift_client.core.decoding import decode_stopped
from swift_client.core.errors import Cancelled
from swift_client.core.generation import Generation
from swift_client.core.metrics import Metrics
from swift_client.core.request import Models, Question, build_request, stop_request
from swift_client.core.results import Completion
from swift_client.core.retry import Retry
from swift_client.core.sampling import CallOptions, GenerateOptions, Message
from swift_client.core.server_facts import Health, Metadata, read_metadata
from swift_client.core.timeout import USE_CLIENT_TIMEOUT, Timeout, as_timeout
from swift_client.core.tls import TLS
from swift_client.sync_client import DEFAULT_URL, QUESTION_SECONDS
from swift_client.transports.choice import async_transport_for, settings_for
from swift_client.transports.protocol import AsyncTransport


class AsyncSwiftClient:
    """A client of one server on one event loop; any number of tasks may use it, each with streams of its own.

    Its arguments are SwiftClient's.

    >>> import asyncio
    >>> from swift_client import FakeTransport
    >>> async def main() -> None:
    ...     async with AsyncSwiftClient(transport=FakeTransport(["Hello", " there"])) as client:
    ...         print((await client.generate("Hi", max_tokens=32)).text)
    >>> asyncio.run(main())
    Hello there
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout: Timeout = Timeout(),
        retry: Retry = Retry(),
        headers: Mapping[str, str] | None = None,
        tls: TLS | None = None,
        metrics_url: str | None = None,
        models: Models = Models(),
        transport: AsyncTransport | None = None,
    ) -> None:
        settings = settings_for(url, headers, tls, timeout.connect, metrics_url)
        self._calls = AsyncCalls(transport or async_transport_for(settings))
        self._timeout = timeout
        self._retry = retry
        self._models = models
        self._streams: set[AsyncStream] = set()
        self._closed = False

    async def __aenter__(self) -> AsyncSwiftClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def generate(self, prompt: str | None = None, **options: Unpack[GenerateOptions]) -> Completion:
        """The whole answer to a prompt, to messages or to input_ids."""
        async with self.stream(prompt, **options) as stream:
            return await stream.result()

    def stream(self, prompt: str | None = None, **options: Unpack[GenerateOptions]) -> AsyncStream:
        """The answer as it comes; the request is sent when the first chunk is asked for."""
        request = build_request(self._models, prompt, options)
        timeout = as_timeout(options.get("timeout", USE_CLIENT_TIMEOUT), self._timeout)
        generation = Generation(request, timeout, self._retry, monotonic())
        if self._closed:
            raise Cancelled("the client is closed", request_id=request.request_id)
        stop = stop_request(self._models, request.request_id)
        stream = AsyncStream(self._calls, generation, stop, self._streams.discard)
        self._streams.add(stream)
        return stream

    async def chat(self, messages: Sequence[Message], **options: Unpack[CallOptions]) -> Completion:
        """The whole answer to messages; to stream it, stream(messages=…)."""
        return await self.generate(messages=messages, **options)

    async def cancel(self, request_id: str) -> bool:
        """Cancel a request by its id, whoever sent it; whether the server knew it."""
        request = stop_request(self._models, request_id)
        return decode_stopped(await self._calls.ask(request, self._timeout.connect, QUESTION_SECONDS))

    async def health(self) -> Health:
        """Whether the server and its models are ready; raises ConnectionFailed where nobody answers."""
        models = {name: bool((await self._ask("model_ready", name))["ready"]) for name in self._models.names}
        return Health(bool((await self._ask("live"))["ready"]), bool((await self._ask("ready"))["ready"]), models)

    async def metadata(self) -> Metadata:
        """What the server says about itself and its models."""
        models = {name: await self._ask("model", name) for name in self._models.names}
        return read_metadata(await self._ask("server"), models)

    async def metrics(self) -> Metrics:
        """The server's figures, from its metrics page."""
        return Metrics.parse((await self._ask("metrics"))["text"])

    async def aclose(self) -> None:
        """Cancel the streams that are open, and close all connections."""
        self._closed = True
        await asyncio.gather(*(stream.aclose() for stream in list(self._streams)))
        await self._calls.aclose()

    async def _ask(self, about: Any, model: str = "") -> Mapping[str, Any]:
        answer = await self._calls.ask(Question(about, model), self._timeout.connect, QUESTION_SECONDS)
        return answer.outputs
