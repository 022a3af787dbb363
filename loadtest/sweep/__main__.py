"""Runs the levels one after another, and keeps what is known after each of them."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn
from swift_client import SwiftClient, SwiftClientError

from loadtest.load.outcome import Outcome
from loadtest.load.summary import lasted, summary
from loadtest.load.thresholds import thresholds_of
from loadtest.load.workloads import WORKLOADS, prompts_of
from loadtest.machine import machine
from loadtest.speedup.kept import save
from loadtest.sweep import server_side
from loadtest.sweep.charts import write_report
from loadtest.sweep.locust_run import Interrupted, Load, LocustFailed, run_level
from loadtest.sweep.options import for_locust, metrics_url, parser
from loadtest.sweep.table import cells, table
from swift_backend.errors import InvalidRequest
from swift_backend.serving.stop_signals import stop_signals_interrupt

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 where a threshold is broken or figures differ; 2 for wrong options; 130 after Ctrl-C."""
    options = parser()
    arguments = options.parse_args(argv)
    other = None
    try:
        prompts_of(WORKLOADS[arguments.workload], arguments.dataset or ())
        if arguments.compare:
            other = json.loads(arguments.compare.read_text(encoding="utf-8"))
            other["machine"], other["command"], [cells(level) for level in other["levels"]]
        with SwiftClient(arguments.url) as client:
            client.health()
        if arguments.metrics_url and server_side.read(arguments.metrics_url) is None:
            raise ValueError(f"--metrics-url must be a page that answers, got {arguments.metrics_url}")
    except (OSError, ValueError, LookupError, TypeError, InvalidRequest, SwiftClientError) as error:
        options.error(f"{type(error).__name__}: {error}")
    return Sweep(arguments, sys.argv[1:] if argv is None else argv, other).go()


class Sweep:
    """One sweep: its levels so far, and what becomes of them."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        argv: Sequence[str],
        other: dict[str, Any] | None,
        console: Console | None = None,
    ) -> None:
        """other: the report of another sweep, to compare with."""
        self._arguments, self._other = arguments, other
        self._command = shlex.join(["python", "-m", "loadtest.sweep", *argv])
        self._console = console or Console()
        self._load = Load(arguments.url, arguments.duration, arguments.shape, for_locust(arguments), arguments.seed)
        self._metrics = metrics_url(arguments.url, arguments.metrics_url)
        self._levels: list[dict[str, Any]] = []

    def go(self) -> int:
        """Run all levels; the exit status."""
        status = 0
        try:
            with stop_signals_interrupt():
                self._run()
        except (KeyboardInterrupt, Interrupted):
            self._console.print("stopped: what was measured until now follows")
            status = INTERRUPTED
        except LocustFailed as error:
            self._console.print(str(error), style="red", markup=False)
            status = 1
        self._tell()
        good = not any(level["broken"] or (level["server"] or {}).get("differences") for level in self._levels)
        return status or int(not good)

    def _run(self) -> None:
        duration, levels = self._arguments.duration, self._arguments.users
        columns = (*Progress.get_default_columns()[:-1], TimeRemainingColumn())
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task("", total=duration * len(levels))
            for number, users in enumerate(levels):
                progress.update(task, description=f"{users} users")
                self._level(users, lambda over, done=number * duration: progress.update(
                    task, completed=done + min(over, duration)))  # fmt: skip
                self._save()
            progress.update(task, completed=duration * len(levels))

    def _level(self, users: int, on_tick: Any) -> None:
        before = server_side.read_at_rest(self._metrics)
        try:
            outcomes = run_level(self._load, users, on_tick)
        except Interrupted as stop:
            self._note(users, stop.args[0], before, complete=False)
            raise
        self._note(users, outcomes, before, complete=True)

    def _note(self, users: int, outcomes: list[Outcome], before: Any, complete: bool) -> None:
        """Keep a level; of one that was cut short the server counts more than was seen, so they are not compared."""
        duration = self._arguments.duration
        seen = summary(outcomes, duration if complete else min(duration, lasted(outcomes)))
        broken = thresholds_of(self._arguments).broken(seen) if complete else []
        level = {"users": users, "complete": complete, **seen, "server": None, "broken": broken}
        self._levels.append(level)  # now: reading the server's figures takes a moment in which Ctrl-C may come
        if complete:
            level["server"] = server_side.compare(before, server_side.read_at_rest(self._metrics), seen)

    def _report(self) -> dict[str, Any]:
        arguments = self._arguments
        names = ("url", "workload", "shape", "duration", "speculation", "seed")
        dataset = [str(file) for file in arguments.dataset or ()]
        return {
            **{name: getattr(arguments, name) for name in names},
            "workload": ", ".join(dataset) or arguments.workload,
            "command": self._command,
            "machine": machine(),
            "metrics_url": self._metrics,
            "levels": self._levels,
        }

    def _save(self) -> None:
        if self._arguments.json:
            save(self._arguments.json, self._report())

    def _tell(self) -> None:
        """Everything at the end, whole or not."""
        self._save()
        self._console.print(table(self._levels))
        for level in self._levels:
            errors = [f"{count} times {said}" for said, count in level["errors"].items()]
            for said in (*errors, *level["broken"], *(level["server"] or {}).get("differences", ())):
                self._console.print(f"{level['users']} users: {said}", style="red", markup=False)
        if self._arguments.html and self._levels:
            write_report(self._arguments.html, self._report(), self._other)


if __name__ == "__main__":
    raise SystemExit(main())
