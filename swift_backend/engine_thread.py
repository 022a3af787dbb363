"""Where does the engine live? One thread loads the model and runs it, and does nothing else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from swift_backend.config import EngineConfig
from swift_backend.engine import Engine, OnStep


class EngineThread:
    """The engine's thread, from loading to the end.

    Loading and running must share a thread: OpenMP keeps a team of workers for every thread that ever computed. With
    a second team libgomp sees more workers than cores and lets them sleep between any two operations, which doubles
    the time of a token (README, "What limits speed").
    """

    def __init__(
        self,
        config: EngineConfig,
        on_end: Callable[[Engine, Exception | None], None],
        on_step: OnStep = lambda report: None,
    ) -> None:
        """on_end is called on the thread once run() is over, with the exception if it failed; on_step: see Engine."""
        self._config = config
        self._on_end = on_end
        self._on_step = on_step
        self._loaded: Future[Engine] = Future()
        self._thread = Thread(target=self._live, name="swift-engine", daemon=True)

    def start(self) -> Engine:
        """Load and go; returns when requests may be submitted. Raises what Engine raises."""
        self._thread.start()
        return self._loaded.result()

    @property
    def alive(self) -> bool:
        """Whether the thread still serves requests."""
        return self._thread.is_alive()

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread after Engine.close(); False when `timeout` seconds were not enough."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _live(self) -> None:
        try:
            engine = Engine(self._config, on_step=self._on_step)
        except BaseException as error:
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(engine)
        failure: Exception | None = None
        try:
            engine.run()
        except Exception as error:
            failure = error
        finally:
            engine.close()
            self._on_end(engine, failure)
            engine.runner.close()
