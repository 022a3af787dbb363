"""Free memory is counted as the machine and its cgroups allow it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from swift_backend.memory import available_memory

GIB = 1024**3


@pytest.fixture(autouse=True)
def eight_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8 * GIB))


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("memory_", "memory.", 1)).write_text(f"{value}\n")


def member(folder: Path, text: str) -> Path:
    file = folder / "membership"
    file.write_text(text)
    return file


def test_without_cgroups_the_machine_counts(tmp_path: Path) -> None:
    assert available_memory(tmp_path, tmp_path / "none") == 8 * GIB


@pytest.mark.parametrize(
    ("limit", "used", "files", "left"),
    [
        (4 * GIB, GIB, 0, 3 * GIB),
        (4 * GIB, 3 * GIB, 2 * GIB, 3 * GIB),
        (64 * GIB, GIB, 0, 8 * GIB),
        ("max", GIB, 0, 8 * GIB),
        (GIB, 2 * GIB, 0, 0),
        ("nonsense", GIB, 0, 8 * GIB),
    ],
)
def test_the_limit_of_a_container(tmp_path: Path, limit: object, used: int, files: int, left: int) -> None:
    """cgroup v2, https://docs.kernel.org/admin-guide/cgroup-v2.html: inactive file pages are given back first."""
    group(tmp_path, memory_max=limit, memory_current=used, memory_stat=f"anon 5\ninactive_file {files}")
    assert available_memory(tmp_path, member(tmp_path, "0::/\n")) == left


def test_the_limit_of_a_container_of_old(tmp_path: Path) -> None:
    """cgroup v1, whose path is the host's while the group is mounted at the top."""
    group(
        tmp_path / "memory",
        memory_limit_in_bytes=4 * GIB,
        memory_usage_in_bytes=2 * GIB,
        memory_stat=f"total_inactive_file {GIB}",
    )
    assert available_memory(tmp_path, member(tmp_path, "5:cpu:/a\n4:memory:/docker/abc\n0::/\n")) == 3 * GIB


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    """A systemd service in a slice with less room."""
    group(tmp_path / "a.slice" / "b.service", memory_max=6 * GIB, memory_current=GIB)
    group(tmp_path / "a.slice", memory_max=3 * GIB, memory_current=2 * GIB)
    assert available_memory(tmp_path, member(tmp_path, "0::/a.slice/b.service\n")) == GIB


def test_no_path_leaves_the_folder(tmp_path: Path) -> None:
    """A group outside the container's namespace reads /../…"""
    group(tmp_path, memory_max=2 * GIB, memory_current=0)
    inside = tmp_path / "cgroup"
    group(tmp_path / "x", memory_max=GIB, memory_current=0)
    inside.mkdir()
    assert available_memory(inside, member(tmp_path, "0::/../x\n")) == 8 * GIB


def test_this_machine_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 0 < available_memory() <= psutil.virtual_memory().total
