import os
import signal
import subprocess
import sys
import time

import pytest

from swift_backend.serving.process_group import end_group, living_members


@pytest.fixture
def family():
    """A parent that ignores SIGTERM, with a child, in a session of their own."""
    program = "trap '' TERM; sleep 60 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        yield parent, child
        end_group(parent.pid)


def test_members_are_those_that_live(family):
    parent, child = family
    assert living_members(parent.pid) == sorted([parent.pid, child])
    os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while child in living_members(parent.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert living_members(parent.pid) == [] or living_members(parent.pid) == [parent.pid]


def test_ending_a_group_ends_the_orphans_too(family):
    parent, child = family
    parent.kill()
    parent.wait()
    assert living_members(parent.pid) == [child]
    end_group(parent.pid)
    assert living_members(parent.pid) == []


def test_an_empty_group_is_no_error():
    with subprocess.Popen([sys.executable, "-c", ""], start_new_session=True) as gone:
        gone.wait()
    end_group(gone.pid)
    assert living_members(gone.pid) == []


def test_a_process_with_brackets_in_its_name(tmp_path):
    program = tmp_path / "a) S 1 1"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"], start_new_session=True) as process:
        deadline = time.monotonic() + 5
        while living_members(process.pid) != [process.pid] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert living_members(process.pid) == [process.pid]
        end_group(process.pid)
