"""The engine's own thread: loads there, runs there, and says how it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from swift_backend import ModelLoadError, SamplingParams
from swift_backend.config import EngineConfig
from swift_backend.engine import Engine
from swift_backend.engine_thread import EngineThread
from swift_backend.sequence import Output, Request


def config(directory: Path) -> EngineConfig:
    return EngineConfig(str(directory), "float32", kv_cache_tokens=64)


def test_loads_and_runs_on_one_thread(tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A second thread that computes would halve the speed of both (libgomp's teams)."""
    names: list[str] = []
    init, step = Engine.__init__, Engine.step

    def noted_init(self: Engine, *args: object, **options: object) -> None:
        names.append(threading.current_thread().name)
        init(self, *args, **options)  # type: ignore[arg-type]

    def noted_step(self: Engine) -> bool:
        names.append(threading.current_thread().name)
        return step(self)

    monkeypatch.setattr(Engine, "__init__", noted_init)
    monkeypatch.setattr(Engine, "step", noted_step)
    ended: list[Exception | None] = []
    thread = EngineThread(config(tiny_model("llama")), lambda engine, failure: ended.append(failure))
    engine = thread.start()
    done = threading.Event()
    news: list[Output] = []

    def on_output(output: Output) -> None:
        news.append(output)
        if output.finished:
            done.set()

    engine.submit(Request("a", [5, 6], SamplingParams(max_tokens=4, ignore_eos=True), on_output))
    assert done.wait(30)
    assert len([t for out in news for t in out.token_ids]) == 4
    assert thread.alive
    engine.close()
    assert thread.join(10)
    assert ended == [None]
    assert set(names) == {"swift-engine"}


def test_a_model_that_cannot_load_raises_where_it_was_asked_for(tmp_path: Path) -> None:
    thread = EngineThread(config(tmp_path / "missing"), lambda engine, failure: None)
    with pytest.raises(ModelLoadError, match="missing"):
        thread.start()
    assert thread.join(10)


def test_a_broken_step_is_reported(tiny_model: Callable[[str], Path]) -> None:
    ended: list[Exception | None] = []
    thread = EngineThread(config(tiny_model("llama")), lambda engine, failure: ended.append(failure))
    engine = thread.start()
    engine.runner.forward = None  # type: ignore[assignment, method-assign]
    engine.submit(Request("a", [5], SamplingParams(max_tokens=4), lambda output: None))
    assert thread.join(10)
    assert isinstance(ended[0], TypeError)
