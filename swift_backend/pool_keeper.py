"""When is what was learnt of layer sets written down? Now and then while the engine runs, and at its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic

from swift_backend.speculation.pool import Pool, load_pool, save_pool

# Writing takes some hundredths of a second; somebody waits for it only where the engine is never idle.
IDLE_SECONDS, BUSY_SECONDS = 30.0, 600.0
# Of a layer set that another process has found.
ELSEWHERE = "pool"


class PoolKeeper:
    """Keeps the file of a pool that other processes may keep, too: what one of them finds, all have in the end."""

    def __init__(self, path: Path, pool: Pool, clock: Callable[[], float] = monotonic) -> None:
        self._path, self._pool, self._clock = path, pool, clock
        self._written = pool.changes
        self._written_at = clock()

    def tick(self, idle: bool) -> None:
        """Write if there is something new, and it is time; idle: nobody waits for the engine."""
        if self._pool.changes != self._written:
            age = self._clock() - self._written_at
            if age >= (IDLE_SECONDS if idle else BUSY_SECONDS):
                self.save()

    def save(self) -> None:
        """Write if there is something new; mutates the pool, which takes over what others have left there."""
        if self._pool.changes == self._written:
            return
        self._pool.merge(load_pool(self._path, self._pool.num_layers), ELSEWHERE)
        save_pool(self._path, self._pool)
        self._written, self._written_at = self._pool.changes, self._clock()
