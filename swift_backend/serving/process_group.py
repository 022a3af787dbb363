"""Which processes belong to a server, and how are they ended for certain?"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_PATIENCE_SECONDS = 5.0


def living_members(group: int) -> list[int]:
    """Ids of the group's processes that still run; zombies, which only wait for their parent, do not."""
    members = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _is_living_member(folder / "stat", group):
            members.append(int(folder.name))
    return sorted(members)


def end_group(group: int) -> None:
    """SIGKILL to whoever is left in the group; returns once they are gone."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while living_members(group) and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        time.sleep(0.02)
    _reap(group)


def _is_living_member(stat: Path, group: int) -> bool:
    try:
        text = stat.read_text()
    except OSError:
        return False  # It ended while we looked.
    # The name in brackets may itself hold brackets and spaces: state, parent and group follow the last one.
    state, _parent, its_group = text.rpartition(")")[2].split()[:3]
    return int(its_group) == group and state not in "ZX"


def _reap(group: int) -> None:
    # Orphaned stubs become our children where the launcher is process 1, as in a container.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
