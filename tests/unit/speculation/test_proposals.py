"""Which layer sets are tried next: at random, by a Gaussian process now and then, and never late for its sake."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from swift_backend.speculation.proposals import INTERVAL, LOADER, MOST_FLIPS, MOST_TRIALS, Proposals


class Process:
    """Stands in for a Gaussian process and its module: keeps what it was taught, and says what the test wants."""

    def __init__(self, expected: list[float] | None = None, deviation: list[float] | None = None) -> None:
        """expected, deviation: for each open sublayer that is left out; by default the more are, the better."""
        self.fits: list[tuple[list[list[float]], list[float]]] = []
        self.asked: list[list[list[float]]] = []
        self._expected, self._deviation = expected, deviation
        self.kernels = SimpleNamespace(RBF=lambda length_scale: 0, WhiteKernel=lambda noise_level: 0)

    def GaussianProcessRegressor(self, kernel: Any, **options: Any) -> Process:
        return self

    def fit(self, bits: NDArray[np.float64], scores: NDArray[np.float64]) -> Process:
        self.fits.append((bits.tolist(), scores.tolist()))
        return self

    def predict(self, bits: NDArray[np.float64], return_std: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        assert return_std
        self.asked.append(bits.tolist())
        width = bits.shape[1]
        return bits @ np.array(self._expected or [1.0] * width), bits @ np.array(self._deviation or [0.0] * width)


def proposals(open_sublayers: range, load: Callable[[], Any] = Process, **options: Any) -> Proposals:
    """With the module there from the second proposal on; the first has been made."""
    made = Proposals(open_sublayers, load=load, **options)
    made.propose(0)
    wait_for_loader()
    return made


def wait_for_loader() -> None:
    for thread in threading.enumerate():
        if thread.name == LOADER:
            thread.join(60)


def masks_of(bits: list[list[float]], open_sublayers: range) -> list[int]:
    return [sum(1 << one for one, bit in zip(open_sublayers, row, strict=True) if bit) for row in bits]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 20), st.integers(1, 30), st.integers(0, 2**50), st.integers(0, 9), st.integers(1, 3))
def test_it_differs_from_the_incumbent_in_open_sublayers_only(
    first: int, count: int, incumbent: int, seed: int, interval: int
) -> None:
    """Whoever proposes, and whatever was tried."""
    open_sublayers = range(first, first + count)
    made = proposals(open_sublayers, seed=seed, interval=interval)
    allowed = sum(1 << one for one in open_sublayers)
    for number in range(6):
        mask = made.propose(incumbent)
        assert mask != incumbent
        assert (mask ^ incumbent) & ~allowed == 0
        assert (mask ^ incumbent).bit_count() <= 2 * MOST_FLIPS
        made.note(mask, number / 7)


def test_neighbours_are_near_and_of_all_kinds() -> None:
    """One to four sublayers differ: more left out, fewer, or as many; each open one sooner or later."""
    made = Proposals(range(4, 16), interval=10**9, load=Process)
    incumbent = 0b0101_0101_0101_0000
    flips = [made.propose(incumbent) ^ incumbent for _ in range(400)]
    assert {flip.bit_count() for flip in flips} == {1, 2, 3, 4}
    sizes = {((incumbent ^ flip).bit_count() - incumbent.bit_count()) for flip in flips}
    assert {-2, -1, 0, 1, 2} <= sizes
    assert {one for one in range(64) for flip in flips if flip >> one & 1} == set(range(4, 16))


def test_nothing_open_is_nothing_to_propose() -> None:
    """A model of two layers, both of them spared."""
    made = proposals(range(2, 2), interval=1)
    for mask in (0, 1, 2):
        made.note(mask, 0.1)
    assert made.propose(0b1111) == 0b1111


def test_the_seed_decides() -> None:
    def proposed(seed: int) -> list[int]:
        made, incumbent = proposals(range(2, 40), seed=seed, interval=5), 0
        found = []
        for number in range(60):
            found.append(made.propose(incumbent))
            made.note(found[-1], (number * 37 % 11) / 10)
            incumbent = found[-1] if number % 7 == 0 else incumbent
        return found

    assert proposed(3) == proposed(3)
    assert proposed(3) != proposed(4)


def test_every_25th_is_of_the_gaussian_process() -> None:
    process = Process()
    made = proposals(range(30), load=lambda: process)
    asked_at = []
    for number in range(2, 102):
        made.note(made.propose(0), 0.1)
        if len(process.asked) > len(asked_at):
            asked_at.append(number)
    assert asked_at == [INTERVAL, 2 * INTERVAL, 3 * INTERVAL, 4 * INTERVAL] == [25, 50, 75, 100]


@pytest.mark.parametrize(("trials", "asked"), [(0, 0), (1, 0), (2, 1)])
def test_two_trials_are_the_least_to_learn_from(trials: int, asked: int) -> None:
    process = Process()
    made = proposals(range(30), load=lambda: process, interval=1)
    for mask in range(trials):
        made.note(mask, 0.1 * mask)
    assert made.propose(0) != 0
    assert len(process.fits) == asked


def test_what_was_tried_is_what_is_learnt_from() -> None:
    """The sets themselves, as bits of the open sublayers, in the order of their trials; scores by their spread."""
    process = Process()
    made = proposals(range(2, 6), load=lambda: process, interval=1)
    tried = [0b101100, 0b010000, 0b101100]
    for mask, score in zip(tried, [0.3, -0.1, 0.1], strict=True):
        made.note(mask, score)
    made.propose(0)
    [(bits, scores)] = process.fits
    assert masks_of(bits, range(2, 6)) == tried
    spread = (0.08 / 3) ** 0.5
    assert scores == pytest.approx([0.2 / spread, -0.2 / spread, 0.0])


def test_scores_that_are_all_the_same_are_no_error() -> None:
    process = Process()
    made = proposals(range(30), load=lambda: process, interval=1)
    made.note(1, 0.25)
    made.note(2, 0.25)
    made.propose(0)
    assert process.fits[0][1] == [0.0, 0.0]


def test_the_latest_trials_are_remembered() -> None:
    process = Process()
    made = proposals(range(10), load=lambda: process, interval=1)
    for mask in range(300):
        made.note(mask, mask / 10)
    made.propose(0)
    assert masks_of(process.fits[0][0], range(10)) == list(range(300 - MOST_TRIALS, 300))


def test_what_is_hoped_most_of_is_proposed() -> None:
    """Mean and uncertainty together: three sublayers promise something, and one may surprise."""
    process = Process(expected=[0.0, 1.0, 1.0, -1.0, 0.1, -1.0], deviation=[0.0, 0.0, 0.0, 2.0, 0.0, 0.5])
    made = proposals(range(6), load=lambda: process, interval=1)
    made.note(1, 0.0)
    made.note(2, 0.1)
    best = {0b011110, 0b011111}  # sublayer 0 makes no difference
    assert made.propose(0) in best


def test_nothing_is_tried_twice_for_the_gaussian_process() -> None:
    process = Process()
    made = proposals(range(6), load=lambda: process, interval=1)
    for mask in (0b111111, 0b011111):
        made.note(mask, 0.1)
    assert made.propose(0).bit_count() == 5
    asked = masks_of(process.asked[0], range(6))
    assert len(asked) == len(set(asked)) > 40
    assert not {0, 0b111111, 0b011111} & set(asked)


def test_where_all_was_tried_neighbours_are_tried_again() -> None:
    process = Process()
    made = proposals(range(2), load=lambda: process, interval=1)
    for mask in range(4):
        made.note(mask, 0.1)
    assert {made.propose(0b10) for _ in range(50)} == {0b00, 0b01, 0b11}
    assert process.asked == []


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Nothing is loaded before it opens; it does in the end."""
    opened = threading.Event()
    yield opened
    opened.set()
    wait_for_loader()


def test_loading_holds_nobody_up(gate: threading.Event) -> None:
    """It begins with the first proposal, on a thread that a process need not wait for; until then neighbours do."""
    process, threads = Process(), []

    def load() -> Process:
        threads.append(threading.current_thread())
        assert gate.wait(60)
        return process

    made = Proposals(range(30), interval=2, load=load)
    made.note(1, 0.1)
    made.note(2, 0.2)
    assert threads == []
    assert all(0 < made.propose(0).bit_count() <= MOST_FLIPS for _ in range(20))
    assert len(threads) == 1 and threads[0] is not threading.current_thread() and threads[0].daemon
    gate.set()
    wait_for_loader()
    assert process.asked == []
    made.propose(0)
    made.propose(0)
    assert len(process.asked) == 1 and len(threads) == 1


@pytest.mark.parametrize("error", [ImportError("no such module"), ValueError("numpy.dtype size changed"), OSError("x")])
def test_what_cannot_be_loaded_is_done_without(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """With one line in the log."""

    def load() -> Any:
        raise error

    made = proposals(range(30), load=load, interval=1)
    made.note(1, 0.1)
    made.note(2, 0.2)
    assert all(0 < made.propose(0).bit_count() <= MOST_FLIPS for _ in range(60))
    wait_for_loader()
    [record] = caplog.records
    assert record.levelname == "WARNING" and record.getMessage().endswith(f"scikit-learn cannot be loaded: {error}")


def test_no_scikit_learn_is_no_error(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.gaussian_process", raising=False)
    made = Proposals(range(30), interval=1)
    made.propose(0)
    wait_for_loader()
    made.note(1, 0.1)
    made.note(2, 0.2)
    assert 0 < made.propose(0).bit_count() <= MOST_FLIPS
    assert len(caplog.records) == 1 and "sklearn" in caplog.text


def test_the_gaussian_process_beats_chance() -> None:
    """Each sublayer makes drafts faster or slower by itself; a trial sees the sum, with as much noise as signal."""
    pytest.importorskip("sklearn")
    rng = random.Random(1)
    ahead = []
    for seed in range(5):
        worth = [rng.gauss(0.0, 1.0) for _ in range(24)]

        def value(mask: int, worth: list[float] = worth) -> float:
            return sum(one for i, one in enumerate(worth) if mask >> i & 1)

        chance, made = Proposals(range(24), seed, interval=10**9), Proposals(range(24), seed, interval=1)
        made.propose(0)
        wait_for_loader()
        incumbent = rng.getrandbits(24)
        neighbours = [chance.propose(incumbent) for _ in range(100)]
        for mask in neighbours:
            made.note(mask, value(mask) - value(incumbent) + rng.gauss(0.0, 1.5))
        expected = [made.propose(incumbent) for _ in range(10)]
        assert not {*neighbours, incumbent} & set(expected)
        ahead.append(sum(map(value, expected)) / 10 - sum(map(value, neighbours)) / 100)
    assert min(ahead) > 1.0, ahead
