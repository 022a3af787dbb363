"""Who gets the terminal's Ctrl-C: only the launcher, or also the make around it?"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_foreground() -> Iterator[None]:
    """Inside, this process alone is the terminal's foreground group; without a terminal nothing changes.

    make ends with an error when Ctrl-C reaches it, however cleanly its child stops.
    Ctrl-Z is ignored meanwhile: the shell does not know this group and could not resume it.
    """
    terminal = _shared_terminal()
    if terminal is None:
        yield
        return
    before = os.getpgrp()
    suspend = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    os.setpgid(0, 0)
    _give(terminal, os.getpgrp())
    try:
        yield
    finally:
        _give(terminal, before)
        os.setpgid(0, before)
        signal.signal(signal.SIGTSTP, suspend)


def _shared_terminal() -> int | None:
    """The terminal on standard input, if it is in the hands of a group that this process does not lead."""
    try:
        descriptor = sys.stdin.fileno()
        shared = os.tcgetpgrp(descriptor) == os.getpgrp() != os.getpid()
    except (AttributeError, OSError, ValueError):
        return None  # Standard input is closed, replaced, or no terminal.
    return descriptor if shared else None


def _give(terminal: int, group: int) -> None:
    # A process in the background is stopped by SIGTTOU for touching the terminal, unless it blocks that.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))
    try:
        os.tcsetpgrp(terminal, group)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
