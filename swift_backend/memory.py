"""How much memory may this process still take? What the machine has free, and what its containers are allowed."""

from __future__ import annotations

import math
from pathlib import Path

import psutil

from swift_backend.cgroup import MEMBERSHIP, ROOT, own_groups


def available_memory(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Bytes, at least 0; a container sees all the memory of its host, and is killed when it takes so much.

    root, membership: see cgroup.own_groups.
    """
    limits = (_left(folder) for folder in own_groups("memory", root, membership))
    return max(0, int(min([psutil.virtual_memory().available, *limits])))


def _left(folder: Path) -> float:
    """Bytes that this group may still take: its limit less what it uses, where file pages count as free."""
    new = _number(folder / "memory.max"), _number(folder / "memory.current"), "inactive_file"
    old = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes"), "total_inactive_file"
    for limit, used, key in (new, old):
        if limit is not None and used is not None:
            return limit - used + _statistic(folder / "memory.stat", key)
    return math.inf


def _number(file: Path) -> int | None:
    """None where there is no such file, or "max" in it."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _statistic(file: Path, key: str) -> int:
    try:
        entries = dict(line.split() for line in file.read_text().splitlines())
        return int(entries.get(key, 0))
    except (OSError, ValueError):
        return 0
