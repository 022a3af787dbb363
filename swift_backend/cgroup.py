"""Which control groups is this process in? Containers and services are limited by them, see cores and memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def own_groups(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> Iterator[Path]:
    """The folders of the groups of both cgroup versions that this process is in, the innermost first.

    controller: cpu or memory, for version 1, where each has a tree of its own. Folders may not be there: the path of a
    container's group can be that of its host, while the group itself is mounted at the top.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = ["0::/", f"1:{controller}:/"]
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number != "0" and controller not in controllers.split(","):
            continue
        folder = top = root if number == "0" else root / controller
        for name in path.split("/"):
            folder = folder / name if name != ".." else top  # a group outside of what we see
        yield from (one for one in (folder, *folder.parents) if one == top or top in one.parents)
