"""Who reads from a server while something breaks, and is it still ready?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import httpx

from loadtest.grpc_stream import Chunk, GrpcStream, StreamError, chunks_of
from swift_backend.serving.server_process import RunningServer

# A watch has seen the doors of a server that has been up for so long, also on a busy machine.
UP_SECONDS = 1.5
LASTING = {"max_tokens": 30_000, "ignore_eos": True, "speculation": "off"}


class Client(threading.Thread):
    """Reads one stream to its end, on a thread; `ended` is when, `error` with what."""

    def __init__(self, server: RunningServer, model: str, parameters: dict[str, Any] = LASTING) -> None:
        super().__init__(daemon=True)
        self._stream = GrpcStream(server.grpc_target)
        inputs: dict[str, Any] = {"input_ids": [5, 6, 7]} if model == "swift_decoder" else {"text_input": "w5 w6 w7"}
        self._call = self._stream.call(model, {**inputs, "stream": True}, parameters)
        self.chunks: list[Chunk] = []
        self.error: Exception | None = None
        self.ended = 0.0
        self.start()

    def run(self) -> None:
        try:
            self.chunks.extend(iter_into(self.chunks, chunks_of(self._call)))
        except (grpc.RpcError, StreamError) as error:
            self.error = error
        self.ended = time.monotonic()
        self._stream.close()

    @property
    def reason(self) -> str:
        return self.chunks[-1].outputs["finish_reason"] if self.chunks else ""


def iter_into(chunks: list[Chunk], news: Iterator[Chunk]) -> Iterator[Chunk]:
    for chunk in news:
        chunks.append(chunk)
    yield from ()


def ready(server: RunningServer, path: str = "/v2/health/ready") -> bool:
    try:
        return httpx.get(server.http_url + path, timeout=2, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
