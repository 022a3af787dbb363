"""How is one level of users run? Locust in a process of its own: it patches everything in the one it runs in."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.load.outcome import Outcome, read_outcomes
from swift_backend.serving.stop_signals import stop_signals_held

LOCUSTFILE = Path(__file__).resolve().parents[1] / "locustfile.py"
ROOT = LOCUSTFILE.parents[1]
# After the duration, for how long the requests that run may go on.
PATIENCE = 120
# To withdraw its requests, once it was asked to end.
LAST_SECONDS = 10
TICK = 0.2


class LocustFailed(Exception):
    """It ended by itself and before its time; the message has what it said."""


@dataclass(frozen=True, slots=True)
class Load:
    """What every level has in common. options: further ones of the locustfile."""

    url: str
    duration: float
    shape: str = "constant"
    options: Sequence[str] = ()
    seed: int = 0

    def command(self, users: int, record: Path) -> list[str]:
        """Locust's, which takes whole seconds; all users come at once, and end their requests when the time is over."""
        seconds = f"{math.ceil(self.duration)}s"
        course = ["-u", str(users), "-r", str(users), "-t", seconds, "--stop-timeout", str(PATIENCE)]
        quiet = ["--headless", "--only-summary", "--loglevel", "WARNING", "--reset-stats"]
        ours = ["--host", self.url, "--shape", self.shape, "--record", str(record), "--max-failures", "1"]
        # Another order for each level, or the server would know its prompts from the one before.
        ours += ["--prompt-seed", str(self.seed + 1000 * users)]
        return [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *quiet, *course, *ours, *self.options]


def run_level(load: Load, users: int, on_tick: Callable[[float], None] = lambda seconds: None) -> list[Outcome]:
    """Every request of so many users; on_tick is told the seconds that are over.

    Raises LocustFailed. Interrupted (KeyboardInterrupt), it ends Locust, which withdraws its requests, and raises
    Interrupted with what was seen.
    """
    with tempfile.TemporaryDirectory(prefix="swift-sweep-") as folder:
        record, said = Path(folder) / "requests.jsonl", Path(folder) / "locust.log"
        with said.open("wb") as log:
            # A session of its own: Ctrl-C is for us, and we tell it.
            process = subprocess.Popen(
                load.command(users, record),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *_python_path()])},
            )
            try:
                _wait(process, on_tick)
            except KeyboardInterrupt:
                with stop_signals_held():  # a second Ctrl-C must not lose what was seen
                    end(process)
                raise Interrupted(list(read_outcomes(record))) from None
            finally:
                end(process)
        outcomes = list(read_outcomes(record))
        if process.returncode not in (0, 1) or not outcomes:
            raise LocustFailed(f"locust ended with {process.returncode}:\n{said.read_text(errors='replace')[-2000:]}")
    return outcomes


class Interrupted(Exception):
    """Ctrl-C within a level; its only argument is what was seen of it."""


def end(process: subprocess.Popen[bytes]) -> None:
    """End it if it runs: asked first, then made to. (By SIGINT, Locust would first wait for all requests.)"""
    for number, patience in ((signal.SIGTERM, LAST_SECONDS), (signal.SIGKILL, LAST_SECONDS)):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)


def _wait(process: subprocess.Popen[bytes], on_tick: Callable[[float], None]) -> None:
    began = time.monotonic()
    while process.poll() is None:
        time.sleep(TICK)
        on_tick(time.monotonic() - began)


def _python_path() -> list[str]:
    known = os.environ.get("PYTHONPATH", "")
    return [known] if known else []
