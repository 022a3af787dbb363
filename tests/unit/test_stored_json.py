"""JSON documents that outlive a process: whole or not there, whoever writes, and never a reason to fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_backend.stored_json import read_json, write_json

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "document.json"


def warned(caplog: pytest.LogCaptureFixture) -> str:
    """The only warning since the last time."""
    [record] = caplog.records
    assert record.levelname == "WARNING"
    caplog.clear()
    return record.getMessage()


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@settings(max_examples=50, deadline=None)
@given(VALUES.filter(lambda value: value is not None))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    assert write_json(path, 3, content)
    assert read_json(path, 3) == content


def test_the_file_is_as_documented_and_replaces_the_old_one(path: Path) -> None:
    assert write_json(path, 1, ["old"])
    assert write_json(path, 2, {"a": [1, 0.5]})
    assert json.loads(path.read_text()) == {"version": 2, "content": {"a": [1, 0.5]}}
    assert names(path.parent) == ["document.json"]


def test_nothing_there_is_nothing_to_warn_of(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_json(path, 1) is None
    assert read_json(path / "below" / "no_folder", 1) is None
    assert caplog.records == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b'{"version": 1, "content": [1]} {', "Extra data"),
        (b'{"version": 1, "content": "\xff"}', "can't decode"),
        (b'{"version": 1, "content": [NaN]}', "NaN is no number"),
        (b'{"version": 1, "content": [-Infinity]}', "-Infinity is no number"),
        (b'{"version": 1, "content": ' + b"[" * 200_000, "recursion"),
        (b'{"version": 2, "content": [1]}', "not of version 1"),
        (b'{"version": "1", "content": [1]}', "not of version 1"),
        (b'{"content": [1]}', "does not say its version"),
        (b"[1, 2]", "does not say its version"),
        (b'{"version": 1}', "has no content"),
        (b'{"version": 1, "content": null}', "has no content"),
    ],
)
def test_what_cannot_be_used_is_named_once(
    path: Path, caplog: pytest.LogCaptureFixture, data: bytes, reason: str
) -> None:
    path.write_bytes(data)
    assert read_json(path, 1) is None
    message = warned(caplog)
    assert message.startswith(f"{path} is not used: ") and reason in message


def test_a_file_that_is_cut_anywhere_is_not_used(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert write_json(path, 1, {"arms": [{"mask": "0x3f0", "alpha": 0.75}]})
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert read_json(path, 1) is None
        assert str(path) in warned(caplog)


def test_a_folder_in_its_place(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.mkdir()
    assert read_json(path, 1) is None
    assert str(path) in warned(caplog)
    assert not write_json(path, 1, [1])
    assert warned(caplog).startswith(f"{path} cannot be written: ")
    assert names(path.parent) == ["document.json"]


def test_a_place_where_nothing_can_be_written(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text("a file, no folder")
    assert not write_json(path / "below.json", 1, [1])
    assert warned(caplog).startswith(f"{path / 'below.json'} cannot be written: ")


def test_folders_are_made_and_others_may_read(tmp_path: Path) -> None:
    """A strict umask is the shell's of whoever started the server, and other users' servers read the file too."""
    path = tmp_path / "new" / "newer" / "document.json"
    before = os.umask(0o077)
    try:
        assert write_json(path, 1, [1])
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    assert read_json(path, 1) == [1]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_refused_and_the_old_file_stays(path: Path, number: float) -> None:
    assert write_json(path, 1, ["old"])
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, 1, {"alpha": number})
    assert read_json(path, 1) == ["old"]
    assert names(path.parent) == ["document.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_writer_leaves_only_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    assert write_json(path, 1, ["old"])

    def fail(handle: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    if error is OSError:
        assert not write_json(path, 1, ["new"])
    else:
        with pytest.raises(error):
            write_json(path, 1, ["new"])
    assert read_json(path, 1) == ["old"]
    assert names(path.parent) == ["document.json"]


def test_the_data_is_on_the_disk_before_it_is_in_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a power cut would leave an empty file of the right name."""
    synced: list[tuple[int, bool]] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append((os.fstat(handle).st_size, path.exists())))
    assert write_json(path, 1, ["new"])
    assert synced == [(path.stat().st_size, False)]


KILLED = """
import os, signal, sys
from pathlib import Path
from swift_backend.stored_json import write_json
setattr(os, sys.argv[2], lambda *args: os.kill(os.getpid(), signal.SIGKILL))
write_json(Path(sys.argv[1]), 1, ["new"] * 1000)
"""


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_killed_writer_does_no_harm(path: Path, call: str) -> None:
    """What it left of its own is neither taken for the document nor in the way of the next one."""
    assert write_json(path, 1, ["old"])
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path), call], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    left = names(path.parent)
    assert read_json(path, 1) == ["old"]
    assert write_json(path, 1, ["newer"])
    assert read_json(path, 1) == ["newer"]
    assert names(path.parent) == left
    assert [name for name in left if not name.startswith(".document.json.")] == ["document.json"]


WRITERS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from swift_backend.stored_json import write_json
contents = [[number] * (5000 + 999 * number) for number in range(40)]
with ThreadPoolExecutor(2) as pool:
    written = list(pool.map(lambda content: write_json(Path(sys.argv[1]), 1, content), contents))
sys.exit(written != [True] * len(contents))
"""


def test_who_reads_while_many_write_sees_a_whole_document(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two processes of two threads each, whose documents differ in length."""
    assert write_json(path, 1, [0] * 5000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITERS, str(path)], cwd=ROOT) for _ in range(2)]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        content = read_json(path, 1)
        assert content is not None and content == [content[0]] * (5000 + 999 * content[0])
        seen.add(content[0])
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(seen) > 1
    assert names(path.parent) == ["document.json"]
    assert caplog.records == []
