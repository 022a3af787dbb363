"""A shell-like parent, a make-like group leader and the launcher's part, on a real pseudo-terminal."""

import os
import pty
import signal
import sys
import time
from pathlib import Path

import pytest

from swift_backend.serving.foreground import own_foreground

ROOT = Path(__file__).parents[3]

# The child is started as make starts its recipes: in the group of a parent that would die of Ctrl-C.
PARENT = """
import subprocess, sys
child = subprocess.run([sys.executable, "-c", sys.argv[1]])
print("parent goes on, child said", child.returncode, flush=True)
"""
CHILD = """
import os, sys, time
from contextlib import nullcontext
from swift_backend.serving.foreground import own_foreground
before = os.getpgrp()
try:
    with own_foreground() if {own} else nullcontext():
        print("leader", os.getpgrp() == os.getpid(), flush=True)
        time.sleep(30)
except KeyboardInterrupt:
    print("back", os.getpgrp() == before == os.tcgetpgrp(0), flush=True)
    sys.exit(7)
"""


def ctrl_c(own: bool) -> str:
    """What is on the screen after Ctrl-C during the child's sleep."""
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background may have been told to ignore it
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", PARENT, CHILD.format(own=own)])
    screen = b""
    typed = False
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            screen += os.read(terminal, 4096)
        except OSError:
            break
        if b"leader" in screen and b"\n" in screen.partition(b"leader")[2] and not typed:
            os.write(terminal, b"\x03")
            typed = True
    os.waitpid(pid, 0)
    os.close(terminal)
    return screen.decode()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_ctrl_c_reaches_only_the_child():
    screen = ctrl_c(own=True)
    assert "leader True" in screen
    assert "back True" in screen
    assert "parent goes on, child said 7" in screen


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_otherwise_the_parent_dies_of_it():
    screen = ctrl_c(own=False)
    assert "leader False" in screen
    assert "parent goes on" not in screen


def test_without_a_terminal_nothing_changes(monkeypatch):
    group = os.getpgrp()
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with own_foreground():
            assert os.getpgrp() == group
