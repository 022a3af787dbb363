"""Which layer set is tried next? Neighbours of the best one at random, and now and then what a Gaussian process expects
most of.
"""

from __future__ import annotations

import importlib
import logging
import random
from collections import deque
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The paper's β: so many random proposals for one of the Gaussian process …
INTERVAL = 25
# … which knows the latest trials only: fitting takes the cube of their number.
MOST_TRIALS = 128
CANDIDATES = 256
MOST_FLIPS = 4
# Of an upper confidence bound, in standard deviations.
CURIOSITY = 1.0
LOADER = "swift-late-import"

_log = logging.getLogger(__name__)


def load_gaussian_process() -> Any:
    """The module sklearn.gaussian_process."""
    return importlib.import_module("sklearn.gaussian_process")


class Proposals:
    """Proposes masks, and remembers how those that were tried did.

    open_sublayers: those that may be left out. Trials are remembered as they were made: what was tried is the set, and
    not a point near it. load: brings the module of the Gaussian process; until it is there, all proposals are random.
    """

    def __init__(
        self,
        open_sublayers: range,
        seed: int = 0,
        interval: int = INTERVAL,
        load: Callable[[], Any] = load_gaussian_process,
    ) -> None:
        self._open = list(open_sublayers)
        self._random = random.Random(seed)
        self._interval = interval
        self._tried: deque[tuple[int, float]] = deque(maxlen=MOST_TRIALS)
        self._count = 0
        self._late = _LateImport(load)

    def propose(self, incumbent: int) -> int:
        """A mask that differs from the incumbent's, unless no sublayer is open."""
        self._count += 1
        self._late.begin()
        module = self._late.module
        if self._count % self._interval == 0 and len(self._tried) >= 2 and module is not None:
            return self._expected_best(module, incumbent)
        return self._neighbour(incumbent)

    def note(self, skip_mask: int, score: float) -> None:
        """Remember a trial; score: how much faster than the incumbent on the same positions."""
        self._tried.append((skip_mask, score))

    def _neighbour(self, mask: int) -> int:
        """A few sublayers more or fewer, or exchanged."""
        flips = self._random.sample(self._open, min(len(self._open), self._random.randint(1, MOST_FLIPS)))
        for one in flips:
            mask ^= 1 << one
        return mask

    def _expected_best(self, module: Any, incumbent: int) -> int:
        """What a Gaussian process over the trials hopes most of, among many neighbours of neighbours."""
        tried = {mask for mask, _ in self._tried}
        masks = list({self._neighbour(self._neighbour(incumbent)) for _ in range(CANDIDATES)} - tried - {incumbent})
        if not masks:
            return self._neighbour(incumbent)
        mean, deviation = self._fitted(module).predict(self._bits(masks), return_std=True)
        return masks[int(np.argmax(mean + CURIOSITY * deviation))]

    def _fitted(self, module: Any) -> Any:
        """A GaussianProcessRegressor that knows the trials."""
        scores = np.array([score for _, score in self._tried])
        spread = float(scores.std()) or 1.0
        kernel = module.kernels.RBF(length_scale=len(self._open) ** 0.5) + module.kernels.WhiteKernel(noise_level=0.3)
        process = module.GaussianProcessRegressor(kernel, optimizer=None, normalize_y=False)
        return process.fit(self._bits([mask for mask, _ in self._tried]), (scores - scores.mean()) / spread)

    def _bits(self, masks: list[int]) -> NDArray[np.float64]:
        return np.array([[mask >> one & 1 for one in self._open] for mask in masks], dtype=np.float64)


class _LateImport:
    """A module that takes a second to load, on a thread of its own: the engine's must not wait for it.

    module: None until it is there, and for ever where it cannot be loaded.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self.module: Any = None
        self._load = load
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Start loading, the first time."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name=LOADER, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            self.module = self._load()
        except (ImportError, OSError, ValueError) as error:  # missing, or built for another numpy
            _log.warning("Layer sets are searched at random, since scikit-learn cannot be loaded: %s", error)
