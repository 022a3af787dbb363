"""Which signals ask the launcher to stop, and when may they interrupt it?"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_signals_interrupt() -> Iterator[None]:
    """Inside, each of them raises KeyboardInterrupt, also where a shell had them ignored."""
    before = {item: signal.signal(item, signal.default_int_handler) for item in STOP_SIGNALS}
    try:
        yield
    finally:
        for item, handler in before.items():
            signal.signal(item, handler)


@contextmanager
def stop_signals_held() -> Iterator[None]:
    """Inside, they wait: for steps that would leave something behind when cut in half.

    A signal mask would not do: it holds for one thread, and any other takes the signal then.
    Only the main thread gets signals, so elsewhere there is nothing to hold.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = {item: signal.signal(item, lambda number, _: arrived.append(number)) for item in STOP_SIGNALS}
    try:
        yield
    finally:
        for item, handler in before.items():
            signal.signal(item, handler)
        if arrived:
            signal.raise_signal(arrived[0])
