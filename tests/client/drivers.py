"""Both clients behind one face, so that a test of their behaviour is written once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from swift_client import AsyncStream, AsyncSwiftClient, Chunk, Completion, Stream, SwiftClient

T = TypeVar("T")
SECONDS = 30


class Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS)

    def tasks(self) -> int:
        """How many there are beside the one that counts."""

        async def count() -> int:
            await asyncio.sleep(0)
            return len(asyncio.all_tasks()) - 1

        return self.run(count())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS)
        self.loop.close()


class DrivenStream:
    """A stream of either client, with plain calls."""

    def __init__(self, stream: Stream | AsyncStream, loop: Loop | None) -> None:
        self.stream = stream
        self._loop = loop

    def __enter__(self) -> DrivenStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        if isinstance(self.stream, Stream):
            return next(self.stream)
        chunk: Chunk | None = self._run(anext_or_none(self.stream))
        if chunk is None:
            raise StopIteration
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def result(self) -> Completion:
        return self.stream.result() if isinstance(self.stream, Stream) else self._run(self.stream.result())

    def close(self) -> None:
        if isinstance(self.stream, Stream):
            self.stream.close()
        else:
            self._run(self.stream.aclose())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return self._loop.run(coroutine)


async def anext_or_none(stream: AsyncStream) -> Chunk | None:
    return await anext(stream, None)


class Driver:
    """A client of either kind, with plain calls."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self.loop = Loop() if kind == "async" else None
        self.client = AsyncSwiftClient(url, **options) if self.loop else SwiftClient(url, **options)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def stream(self, *prompt: str, **options: Any) -> DrivenStream:
        return DrivenStream(self.client.stream(*prompt, **options), self.loop)

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Any other method, by its name."""
        outcome = getattr(self.client, method)(*arguments, **options)
        return self.loop.run(outcome) if self.loop else outcome

    def generate(self, *prompt: str, **options: Any) -> Completion:
        completion: Completion = self.call("generate", *prompt, **options)
        return completion

    def close(self) -> None:
        """The client, then the loop, on which nothing may be left."""
        if self.loop is None:
            assert isinstance(self.client, SwiftClient)
            self.client.close()
            return
        assert isinstance(self.client, AsyncSwiftClient)
        if self.loop.loop.is_closed():
            return
        try:
            self.loop.run(self.client.aclose())
            assert self.loop.tasks() == 0
        finally:
            self.loop.close()
