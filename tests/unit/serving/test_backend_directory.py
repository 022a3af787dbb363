import os
from pathlib import Path

import pytest

from swift_backend.serving.backend_directory import STUB, assemble_backend, runnable_server


@pytest.fixture
def parts(tmp_path) -> tuple[Path, Path]:
    backend = tmp_path / "wheel" / "python"
    (backend / "__pycache__").mkdir(parents=True)
    (backend / "libtriton_python.so").write_text("backend")
    (backend / "__pycache__" / "old.pyc").touch()
    stub = tmp_path / "wheel" / STUB
    stub.write_text("stub")
    stub.chmod(0o644)
    return backend, stub


def test_backend_and_stub_lie_side_by_side(parts, tmp_path):
    target = tmp_path / "cache" / "triton-1"
    assert assemble_backend(parts[0], parts[1], target) == target
    assert sorted(path.name for path in (target / "python").iterdir()) == ["libtriton_python.so", STUB]
    assert (target / "python" / STUB).read_text() == "stub"
    assert os.access(target / "python" / STUB, os.X_OK)
    assert [path.name for path in target.parent.iterdir()] == ["triton-1"]


def test_a_second_time_copies_nothing(parts, tmp_path):
    target = assemble_backend(parts[0], parts[1], tmp_path / "triton-1")
    parts[1].unlink()
    assert assemble_backend(parts[0], parts[1], target) == target


def test_an_interrupted_copy_leaves_nothing(parts, tmp_path):
    target = tmp_path / "cache" / "triton-1"
    with pytest.raises(FileNotFoundError):
        assemble_backend(parts[0], tmp_path / "missing", target)
    assert list(target.parent.iterdir()) == []


def test_losing_a_race_is_no_error(parts, tmp_path, monkeypatch):
    target = tmp_path / "triton-1"
    rename = Path.rename

    def another_was_faster(self, goal):
        (goal / "python").mkdir(parents=True)
        (goal / "python" / "theirs").touch()
        return rename(self, goal)

    monkeypatch.setattr(Path, "rename", another_was_faster)
    assert assemble_backend(parts[0], parts[1], target) == target
    assert [path.name for path in (target / "python").iterdir()] == ["theirs"]


def test_a_server_that_cannot_be_renamed_is_an_error(parts, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError):
        assemble_backend(parts[0], parts[1], tmp_path / "triton-1")


def test_the_run_bit_is_set_in_place(parts, tmp_path):
    assert runnable_server(parts[1], tmp_path / "cache") == parts[1]
    assert os.access(parts[1], os.X_OK)
    assert not (tmp_path / "cache").exists()


def test_where_that_is_not_allowed_a_copy_runs(parts, tmp_path, monkeypatch):
    chmod = Path.chmod

    def refuse(self, mode):
        if self == parts[1]:
            raise PermissionError
        chmod(self, mode)

    monkeypatch.setattr(Path, "chmod", refuse)
    copy = runnable_server(parts[1], tmp_path / "cache" / "triton-1")
    assert copy == tmp_path / "cache" / "triton-1" / STUB
    assert copy.read_text() == "stub"
    assert os.access(copy, os.X_OK)
    copy.write_text("kept")
    assert runnable_server(parts[1], tmp_path / "cache" / "triton-1").read_text() == "kept"
