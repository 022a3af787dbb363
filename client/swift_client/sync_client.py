"""The client with plain calls."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import Any

from typing_extensions import Unpack

from swift_client.core.decoding import decode_stopped
from swift_client.core.errors import Cancelled
from swift_client.core.generation import Generation
from swift_client.core.metrics import Metrics
from swift_client.core.request import Models, Question, Request, build_request, stop_request
from swift_client.core.results import Completion
from swift_client.core.retry import Retry
from swift_client.core.sampling import CallOptions, GenerateOptions, Message
from swift_client.core.server_facts import Health, Metadata, read_metadata
from swift_client.core.timeout import USE_CLIENT_TIMEOUT, Timeout, as_timeout
from swift_client.core.tls import TLS
from swift_client.sync_calls import Calls
from swift_client.sync_stream import Stream
from swift_client.transports.choice import settings_for, transport_for
from swift_client.transports.protocol import Transport

DEFAULT_URL = "grpc://localhost:8001"
# Questions about the server are quick, or there is something wrong.
QUESTION_SECONDS = 5.0


class SwiftClient:
    """A client of one server; any number of threads may use it, each with streams of its own.

    url: grpc://, grpcs://, http:// or https://. headers go along with every request. metrics_url: the metrics page,
    http://HOST:8002/metrics if left out. models: where they have other names. transport: instead of the url's. Proxies
    that the environment names are not used.

    >>> from swift_client import FakeTransport
    >>> with SwiftClient(transport=FakeTransport(["Hello", " there"])) as client:
    ...     client.generate("Hi", max_tokens=32).text
    'Hello there'
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
        transport: Transport | None = None,
    ) -> None:
        settings = settings_for(url, headers, tls, timeout.connect, metrics_url)
        self._calls = Calls(transport or transport_for(settings))
        self._timeout = timeout
        self._retry = retry
        self._models = models
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._closed = False

    def __enter__(self) -> SwiftClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generate(self, prompt: str | None = None, **options: Unpack[GenerateOptions]) -> Completion:
        """The whole answer to a prompt, to messages or to input_ids."""
        with self.stream(prompt, **options) as stream:
            return stream.result()

    def stream(self, prompt: str | None = None, **options: Unpack[GenerateOptions]) -> Stream:
        """The answer as it comes; the request is sent when the first chunk is asked for."""
        request = build_request(self._models, prompt, options)
        timeout = as_timeout(options.get("timeout", USE_CLIENT_TIMEOUT), self._timeout)
        generation = Generation(request, timeout, self._retry, monotonic())
        stop = stop_request(self._models, request.request_id)
        with self._lock:
            if self._closed:
                raise Cancelled("the client is closed", request_id=request.request_id)
            stream = Stream(self._calls, generation, stop, self._forget)
            self._streams.add(stream)
        return stream

    def chat(self, messages: Sequence[Message], **options: Unpack[CallOptions]) -> Completion:
        """The whole answer to messages; to stream it, stream(messages=…)."""
        return self.generate(messages=messages, **options)

    def cancel(self, request_id: str) -> bool:
        """Cancel a request by its id, whoever sent it; whether the server knew it."""
        request = stop_request(self._models, request_id)
        return decode_stopped(self._calls.ask(request, self._timeout.connect, QUESTION_SECONDS))

    def health(self) -> Health:
        """Whether the server and its models are ready; raises ConnectionFailed where nobody answers."""
        models = {name: bool(self._ask("model_ready", name)["ready"]) for name in self._models.names}
        return Health(bool(self._ask("live")["ready"]), bool(self._ask("ready")["ready"]), models)

    def metadata(self) -> Metadata:
        """What the server says about itself and its models."""
        return read_metadata(self._ask("server"), {name: self._ask("model", name) for name in self._models.names})

    def metrics(self) -> Metrics:
        """The server's figures, from its metrics page."""
        return Metrics.parse(self._ask("metrics")["text"])

    def close(self) -> None:
        """Cancel the streams that are open, and close all connections."""
        with self._lock:
            self._closed = True
            streams = list(self._streams)
        for stream in streams:
            stream.close()
        self._calls.close()

    def _ask(self, about: Any, model: str = "") -> Mapping[str, Any]:
        question: Request = Question(about, model)
        return self._calls.ask(question, self._timeout.connect, QUESTION_SECONDS).outputs

    def _forget(self, stream: Stream) -> None:
        with self._lock:
            self._streams.discard(stream)
