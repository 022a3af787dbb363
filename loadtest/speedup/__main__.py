"""Runs the measurement that the options describe, and keeps what is known of it after every batch."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn

from loadtest.machine import machine
from loadtest.memory import measured
from loadtest.speedup import kept
from loadtest.speedup.charts import write_report
from loadtest.speedup.measuring import PLAIN, measure, params_of, warm_up
from loadtest.speedup.options import SETTINGS, parser, settled
from loadtest.speedup.prompts import GUIDE_ROWS, Prompt, alternating, batches, in_segments, read_prompts
from loadtest.speedup.rows import rows_of, stream_of, totals_of
from loadtest.speedup.table import table
from swift_backend import SwiftLLM
from swift_backend.errors import InvalidRequest
from swift_backend.serving.stop_signals import stop_signals_interrupt

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 where a prompt or memory's process failed, 130 after Ctrl-C."""
    options = parser()
    arguments = options.parse_args(argv)
    if wrong := settled(arguments):
        options.error(wrong)
    try:
        for method in arguments.methods:
            params_of(method, sampling_of(arguments))
    except InvalidRequest as error:
        options.error(str(error))
    layer_sets = {} if arguments.layer_sets is None else {"layer_sets": str(arguments.layer_sets)}
    llm = SwiftLLM(arguments.model, arguments.dtype, prefix_cache=False, **layer_sets)
    try:
        ordered = _order(llm, arguments)
        run = Run(llm, arguments, batches(ordered, arguments.batch), argv)
    except (ValueError, kept.ResumeError) as error:
        options.error(str(error))
    if not ordered:
        options.error("--dataset: no prompt is short enough for --max-prompt-tokens")
    return run.go()


def sampling_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What every method is asked for."""
    names = ("max_tokens", "temperature", "seed", "ignore_eos", "max_draft_tokens", "confidence_threshold")
    return {name: getattr(arguments, name) for name in names}


def _order(llm: SwiftLLM, arguments: argparse.Namespace) -> list[Prompt]:
    longest = arguments.max_prompt_tokens or llm.engine.context_length // 2
    segments = arguments.stream or []
    enough = arguments.per_category * max(len(segments), 1)
    prompts = read_prompts(llm, arguments.dataset, enough, arguments.prompt_format, longest)
    if segments:
        return in_segments(prompts, segments, arguments.per_category)
    return alternating(prompts) if arguments.mixed else prompts


class Run:
    """One measurement: its records so far, and what becomes of them."""

    def __init__(
        self,
        llm: SwiftLLM,
        arguments: argparse.Namespace,
        batched: list[list[Prompt]],
        argv: Sequence[str] | None,
        console: Console | None = None,
    ) -> None:
        """Raises ResumeError where there is nothing to go on with."""
        self._llm, self._arguments, self._batches = llm, arguments, batched
        self._console = console or Console()
        self._command = shlex.join(["python", "-m", "loadtest.speedup", *(sys.argv[1:] if argv is None else argv)])
        self._settings = {name: _plain(getattr(arguments, name)) for name in SETTINGS}
        self._settings["prompts"] = kept.fingerprint(batched)
        self._records = kept.load(arguments.json, self._settings) if arguments.resume else []
        self._memory: list[dict[str, Any]] = []
        self._memory_failed = False

    def go(self) -> int:
        """Measure what is left; the exit status."""
        try:
            with stop_signals_interrupt():
                self._measure()
                if self._arguments.memory:
                    self._measure_memory()
        except KeyboardInterrupt:
            self._console.print("stopped: what was measured until now follows")
            self._tell()
            return INTERRUPTED
        self._tell()
        return int(self._memory_failed or any(record.error for record in self._records))

    def _measure(self) -> None:
        arguments, done = self._arguments, self._done
        if done < len(self._batches):
            warm_up(self._llm, self._batches[0][0], arguments.methods)
        sampling = sampling_of(arguments)
        columns = (*Progress.get_default_columns()[:-1], TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task("batches", total=len(self._batches), completed=done)
            for records in measure(self._llm, self._batches, arguments.methods, sampling, done):
                self._records += records
                for one in (one for one in records if one.error):
                    progress.console.print(f"{one.method} on {one.category}: {one.error}", style="red", markup=False)
                self._save()
                progress.advance(task)

    def _measure_memory(self) -> None:
        arguments = self._arguments
        drafting = [name for name in arguments.methods if name != PLAIN]
        method = "auto" if "auto" in drafting or not drafting else drafting[-1]
        options = {"tokens": 64, "batch": 4, "layer_sets": arguments.layer_sets}
        try:
            with self._console.status(f"memory: a process for each of {PLAIN} and {method}"):
                self._memory = measured(arguments.model, arguments.dtype, [PLAIN, method], **options)
        except subprocess.CalledProcessError as error:
            said = f"--memory: a process failed with exit status {error.returncode}"
            self._console.print(said, style="red", markup=False)
            self._memory_failed = True

    @property
    def _done(self) -> int:
        return len({record.batch for record in self._records})

    def _report(self) -> dict[str, Any]:
        arguments, model = self._arguments, self._llm.engine.model
        by_guide = arguments.rows == "guide"
        names = {one.category: GUIDE_ROWS.get(one.category, one.category) for one in self._records if by_guide}
        report = {
            "model": str(model.directory.name),
            "dtype": model.dtype,
            "device": str(self._llm.engine.runner.device),
            "rows": rows_of(self._records, arguments.methods, lambda name: names.get(name, name)),
            "totals": totals_of(self._records, arguments.methods),
            "command": self._command,
            "machine": machine(),
            "batches": len(self._batches),
            "batches_done": self._done,
            "settings": self._settings,
            "records": [record.kept() for record in self._records],
        }
        if arguments.stream or arguments.mixed:
            report["stream"] = stream_of(self._records, arguments.methods)
        return {**report, "memory": self._memory} if self._memory else report

    def _save(self) -> None:
        if self._arguments.json:
            kept.save(self._arguments.json, self._report())

    def _tell(self) -> None:
        """Everything at the end, whole or not."""
        self._save()
        if not self._records:
            self._console.print("nothing was measured")
            return
        report = self._report()
        self._console.print(table(report, self._arguments.methods))
        if self._arguments.html:
            write_report(self._arguments.html, report, self._arguments.methods)


def _plain(value: Any) -> Any:
    return str(value) if hasattr(value, "__fspath__") else value


if __name__ == "__main__":
    raise SystemExit(main())
