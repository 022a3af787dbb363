"""What does a rank other than the first do? It loads its part of the model and obeys rank 0, until that is gone.

Started as a process of its own: `python -m swift_backend.parallel.worker FD`, with a socket to rank 0.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import torch

from swift_backend.errors import RankFailure
from swift_backend.kv_cache import KVCache
from swift_backend.parallel.devices import free_memory
from swift_backend.parallel.group import Group
from swift_backend.parallel.loading import cache_sizes, linear_bytes, load_share
from swift_backend.parallel.orders import Answer, Failed, Here, Loaded, Ready
from swift_backend.runner import Runner


def main(fd: int) -> int:
    """Work until rank 0 hangs up, which is a good end; 1 after a failure, which rank 0 is told."""
    for one in (signal.SIGINT, signal.SIGTERM):  # a whole group may get them: rank 0 decides, and its end is ours
        signal.signal(one, signal.SIG_IGN)
    line = Connection(fd)
    Thread(target=_end_with_rank_0, args=(fd,), daemon=True).start()
    try:
        work(line)
    except EOFError:
        return 0
    except Exception as error:
        own = not isinstance(error, RankFailure)
        if own:
            traceback.print_exc()
        with contextlib.suppress(OSError):
            _say(line, Failed(f"{type(error).__name__}: {error}", own))
    return 1


def work(line: Connection) -> None:
    """Load, and obey order after order; EOFError when there are no more."""
    task = _hear(line)
    if task.threads:
        torch.set_num_threads(task.threads)
    _say(line, Here())
    group = Group(task.share, task.meeting_place, task.device)
    decoder = load_share(task, group)
    _say(line, Loaded(linear_bytes(decoder), free_memory(task.device)))
    room = _hear(line)
    runner = Runner(decoder, KVCache(*cache_sizes(task, room.capacity)), task.device)
    _say(line, Ready())
    while True:
        _hear(line).obey(runner)


def _hear(line: Connection) -> Any:
    return pickle.loads(line.recv_bytes())


def _say(line: Connection, answer: Answer) -> None:
    line.send_bytes(pickle.dumps(answer))


def _end_with_rank_0(fd: int) -> None:
    """Also in the middle of a pass: nobody wants its result any more."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
