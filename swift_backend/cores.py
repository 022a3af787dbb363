"""How many cores may this process use? What it is bound to, and what its container is allowed."""

from __future__ import annotations

import math
import os
from pathlib import Path

from swift_backend.cgroup import MEMBERSHIP, ROOT, own_groups


def available_cores(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """At least 1; containers that are limited in time see all cores of their host, and must not use so many.

    root, membership: see cgroup.own_groups.
    """
    cores = len(os.sched_getaffinity(0))
    quotas = (_quota_v2(folder / "cpu.max") or _quota_v1(folder) for folder in own_groups("cpu", root, membership))
    return max(1, min([cores, *(math.ceil(quota) for quota in quotas if quota)]))


def _quota_v2(file: Path) -> float | None:
    """Cores by "QUOTA PERIOD", both in microseconds; "max" is no limit."""
    try:
        quota, period = file.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
