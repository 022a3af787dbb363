"""Cores are counted as cgroups and affinity allow them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swift_backend.cores import available_cores


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 4, 6})


def write(folder: Path, **files: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_without_cgroups_the_affinity_counts(tmp_path: Path) -> None:
    assert available_cores(tmp_path, tmp_path / "none") == 4


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("max 100000", 4),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("100000 100000", 1),
        ("20000 100000", 1),
        ("400000 50000", 4),
        ("1600000 100000", 4),
        ("nonsense", 4),
        ("a b", 4),
        ("100000 0", 4),
        ("", 4),
    ],
)
def test_the_limit_of_a_container(tmp_path: Path, limit: str, cores: int) -> None:
    """cgroup v2: --cpus=1.5 is "150000 100000", https://docs.kernel.org/admin-guide/cgroup-v2.html."""
    write(tmp_path, cpu__max=f"{limit}\n")
    assert available_cores(tmp_path, tmp_path / "none") == cores


@pytest.mark.parametrize(
    ("quota", "period", "cores"),
    [("-1", "100000", 4), ("300000", "100000", 3), ("250000", "100000", 3), ("5000", "100000", 1), ("x", "100000", 4)],
)
def test_the_limit_of_a_container_of_old(tmp_path: Path, quota: str, period: str, cores: int) -> None:
    """cgroup v1: a quota of -1 is none."""
    write(tmp_path / "cpu", cpu__cfs_quota_us=quota, cpu__cfs_period_us=period)
    assert available_cores(tmp_path, tmp_path / "none") == cores


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    """A service without a limit of its own, in a systemd slice that has one."""
    write(tmp_path / "a.slice", cpu__max="100000 100000")
    write(tmp_path / "a.slice" / "b.service", cpu__max="max 100000")
    membership = tmp_path / "membership"
    membership.write_text("3:cpuset:/\n0::/a.slice/b.service\n")
    assert available_cores(tmp_path, membership) == 1


def test_a_half_written_old_limit_is_none(tmp_path: Path) -> None:
    write(tmp_path / "cpu", cpu__cfs_quota_us="100000")
    assert available_cores(tmp_path, tmp_path / "none") == 4


def test_this_machine_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 1 <= available_cores() <= len(os.sched_getaffinity(0))
