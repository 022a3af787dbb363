"""How does rank 0 lead the others? It tells them what it does itself, and learns when one has failed."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager

from swift_backend.errors import RankFailure
from swift_backend.parallel.orders import Order
from swift_backend.parallel.processes import EXIT_SECONDS, Watch, Worker, end


class Team:
    """The other ranks, ready to work; they end with close(), with this object, and with this process."""

    def __init__(self, workers: Seq[Worker], abort: Callable[[], None], cleanup: Callable[[], None]) -> None:
        """Watches over them; abort: see Watch. cleanup: called when they have ended."""
        self._workers, self._watch = workers, Watch(workers, abort)
        self.close = weakref.finalize(self, _close, workers, self._watch, cleanup)
        self.on_failure = self._watch.on_failure

    def say(self, order: Order) -> None:
        """Have all obey; RankFailure when one is gone."""
        self.check()
        message = pickle.dumps(order)
        try:
            for worker in self._workers:
                worker.say(message)
        except OSError as error:
            raise self._broken(RankFailure(f"a rank cannot be reached: {error}")) from error

    def check(self) -> None:
        """RankFailure when one is gone."""
        if self._watch.failure is not None:
            raise RankFailure(str(self._watch.failure))

    @contextmanager
    def together(self, order: Order) -> Iterator[None]:
        """Have the others do what is done inside, where all wait for each other.

        Whatever is raised inside leaves them out of step, so that nothing can go on: RankFailure.
        """
        self.say(order)
        try:
            yield
        except RankFailure as error:
            raise self._broken(error) from error
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception):
                raise
            raise RankFailure(f"rank 0 of tensor_parallel has failed: {type(error).__name__}: {error}") from error

    def _broken(self, error: RankFailure) -> RankFailure:
        """End all; returns why that happened, as the watch finds out, or the error where all live and one hangs."""
        known = self._watch.told.wait(EXIT_SECONDS) and self._watch.failure
        self.close()
        return RankFailure(str(known or error))


def _close(workers: Seq[Worker], watch: Watch, cleanup: Callable[[], None]) -> None:
    watch.end("the ranks of tensor_parallel have been stopped")
    end(workers)
    cleanup()
