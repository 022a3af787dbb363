"""How many cores may this process use? What it is bound to, and what its container is allowed."""

from __future__ import annotations

import math
import os
from pathlib import Path


def available_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """At least 1; containers that are limited in time see all cores of their host, and must not use so many."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota_v2(cgroup / "cpu.max") or _quota_v1(cgroup / "cpu")
    return max(1, min(cores, math.ceil(quota))) if quota else cores


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
