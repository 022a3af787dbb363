"""Who looks at the clock while a plain call waits? One thread for all streams of a client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

_LONG = 3600.0


class Alarm:
    """Rings once when its moment comes; `rang` says so."""

    __slots__ = ("at", "rang", "ring")

    def __init__(self, ring: Callable[[], None]) -> None:
        self.ring = ring
        self.at: float | None = None
        self.rang = False


class Watch:
    """Alarms are set for each chunk, and nearly never ring: setting a later one costs two assignments, no lock."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._alarms: set[Alarm] = set()
        self._wakes = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    def set(self, alarm: Alarm, at: float | None) -> None:
        """`at` of the monotonic clock, None for never."""
        alarm.at = at
        if at is not None and (at < self._wakes or self._thread is None):
            self._wake()

    def add(self, ring: Callable[[], None]) -> Alarm:
        """A new alarm; `ring` is called on the watch's thread, and must not take long."""
        alarm = Alarm(ring)
        with self._changed:
            self._alarms.add(alarm)
        return alarm

    def remove(self, alarm: Alarm) -> None:
        """It rings no more."""
        with self._changed:
            self._alarms.discard(alarm)

    def close(self) -> None:
        """Wait for the thread to end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _wake(self) -> None:
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="swift-client-watch", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = monotonic()
                due = [alarm for alarm in self._alarms if (at := alarm.at) is not None and at <= now]
                for alarm in due:
                    alarm.at, alarm.rang = None, True
                if not due:
                    # In this order: an alarm set after the first line notifies, an earlier one is in the second.
                    self._wakes = now + _LONG
                    self._wakes = min((at for one in self._alarms if (at := one.at) is not None), default=now + _LONG)
                    self._changed.wait(max(0.0, self._wakes - now))
            for alarm in due:
                alarm.ring()
