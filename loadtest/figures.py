"""What do the server's metrics and processes say? Read, never guessed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Sample = tuple[str, tuple[tuple[str, str], ...]]


def read_metrics(url: str, prefix: str = "swift_") -> dict[Sample, float]:
    """Every sample whose name begins so: {(name, sorted labels): value}."""
    text = httpx.get(url, timeout=10, trust_env=False).text
    found = (_LINE.match(line) for line in text.splitlines() if line.startswith(prefix))
    return {
        (match[1], tuple(sorted(_LABEL.findall(match[2] or "")))): float(match[3])
        for match in found
        if match is not None
    }


def total(metrics: dict[Sample, float], name: str, **labels: str) -> float:
    """The sum over all samples of a name that have these labels."""
    wanted = set(labels.items())
    return sum(
        value for (its_name, its_labels), value in metrics.items() if its_name == name and wanted <= {*its_labels}
    )


def difference(after: dict[Sample, float], before: dict[Sample, float]) -> dict[Sample, float]:
    """What was added in between."""
    return {sample: value - before.get(sample, 0.0) for sample, value in after.items()}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: resident memory of the server and its children without shared pages counted twice, and shared memory."""

    resident: int
    shared: int


def memory_of(server: int) -> Memory:
    """Of a server that was started with region names of its own, as ours are."""
    process = psutil.Process(server)
    family = [process, *process.children(recursive=True)]
    files = {name for one in family for name in _mapped(one.pid)}
    return Memory(
        resident=sum(one.memory_full_info().uss for one in family if one.is_running()),
        shared=sum(_blocks(name) for name in files),
    )


def _mapped(pid: int) -> set[str]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line}


def _blocks(name: str) -> int:
    try:
        return os.stat(name).st_blocks * 512
    except OSError:
        return 0
