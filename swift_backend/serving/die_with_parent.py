"""Becomes another program that is asked to stop when its parent dies: PARENT_ID PROGRAM [ARGUMENT …].

Run as a file, not imported: a hook between fork and exec would do, but is unsafe once there are threads.
Linux ties the wish to the parent's *thread*, so start servers from a thread that lives as long as they do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, program: list[str]) -> None:
    """Replaces this process by `program`; exits 1 if the parent has died already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
