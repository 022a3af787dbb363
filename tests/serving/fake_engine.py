"""An engine that does what the tests say, and what else the tests of swift_decoder share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import Any

from swift_backend.config import EngineConfig
from swift_backend.errors import ModelLoadError, Unavailable
from swift_backend.metrics import StepReport
from swift_backend.model.linear import Kernels
from swift_backend.sequence import Output, Request, TokenLogprob


class FakeEngine:
    """Keeps requests until the test finishes them; close ends them as cancelled, like the real one."""

    def __init__(self, config: EngineConfig, on_step: Callable[[StepReport], None]) -> None:
        if config.model == "missing":
            raise ModelLoadError("the model 'missing' does not exist")
        self.config, self.on_step = config, on_step
        self.paused: list[tuple[str, bool]] = []
        self.drains: list[float] = []
        self.context_length, self.vocab_size = 128, 1000
        self.model = SimpleNamespace(directory="models/tiny", dtype="bfloat16")
        shape, cache = SimpleNamespace(num_layers=4), SimpleNamespace(capacity=512)
        decoder = SimpleNamespace(config=shape, kernel="its kernel", kernels=Kernels(invariant=True))
        self.runner = SimpleNamespace(device="cpu", decoder=decoder, cache=cache, close=lambda: None)
        self.tokenizer = SimpleNamespace(decode=self.decode)
        self.requests: dict[str, Request] = {}
        self.cancelled: list[str] = []
        self.refusal: Exception | None = None
        self.crash: Exception | None = None
        self.wake = Event()

    @staticmethod
    def decode(ids: list[int], *, skip_special_tokens: bool) -> str:
        return f"<{'+'.join(map(str, ids))} {skip_special_tokens}>"

    def submit(self, request: Request) -> None:
        if self.refusal:
            raise self.refusal
        self.requests[request.request_id] = request

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        if request_id in self.requests:
            self.end(request_id, "cancelled")

    def run(self) -> None:
        self.wake.wait()
        if self.crash:
            raise self.crash
        for request_id in list(self.requests):
            self.end(request_id, "cancelled")

    def pause(self, request_id: str, paused: bool) -> None:
        self.paused.append((request_id, paused))

    def close(self, drain_seconds: float = 0.0) -> None:
        self.drains.append(drain_seconds)
        self.refusal = Unavailable("the server is shutting down")
        self.wake.set()

    def emit(self, request_id: str, text: str, *token_ids: int) -> None:
        request = self.requests[request_id]
        asked = request.params.logprobs is not None
        logprobs = tuple(TokenLogprob(token, -0.5, ((token, -0.5),)) for token in token_ids) if asked else ()
        total = sum(one.logprob for one in logprobs)
        request.on_output(Output(request_id, text, token_ids, logprobs, total))

    def end(self, request_id: str, reason: str, text: str = "") -> None:
        self.requests.pop(request_id).on_output(Output(request_id, text, finish_reason=reason))


def arguments(name: str = "swift_decoder", count: int = 1, **parameters: str) -> dict[str, str]:
    """What Triton hands to initialize; name and number of instances are the model's."""
    entries = {name: {"string_value": value} for name, value in parameters.items()}
    config = {"parameters": entries, "instance_group": [{"count": count, "kind": "KIND_MODEL", "gpus": []}]}
    return {"model_name": name, "model_version": "1", "model_config": json.dumps(config)}


def engine_of(model: Any) -> FakeEngine:
    engine = model._engine
    assert isinstance(engine, FakeEngine)
    return engine


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def ended(request: Any) -> list[dict[str, Any]]:
    assert request.sender.done.wait(5), "no FINAL"
    return request.sender.tables
