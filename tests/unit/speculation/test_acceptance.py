"""Which drafted tokens survive: literal cases, and distributions against the exact ones."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import torch
from scipy import stats

from swift_backend.noise import Purpose
from swift_backend.params import SamplingParams
from swift_backend.sampling import Draw, draw_from, draw_uniform
from swift_backend.speculation.acceptance import accept_coupled, accept_rejection, residual
from tests.chi_square import p_value

PARAMS = SamplingParams(temperature=1.0)


@pytest.mark.parametrize(
    ("draft", "target", "committed"),
    [
        ([], [4], [4]),
        ([7, 8, 9], [7, 8, 9, 1], [7, 8, 9, 1]),
        ([7, 8, 9], [7, 5, 9, 1], [7, 5]),
        ([7], [3, 1], [3]),
        ([0, 0], [0, 0, 0], [0, 0, 0]),
        ([7, 8], [8, 7, 8], [8]),
    ],
)
def test_coupled(draft: list[int], target: list[int], committed: list[int]) -> None:
    path, last = accept_coupled(draft, chain(draft), target)
    assert [*(draft[node] for node in path), last] == committed


def chain(draft: list[int]) -> range:
    """Each token follows the one before it."""
    return range(-1, len(draft) - 1)


def probs(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


CASES = {
    "overlapping": (probs(0.1, 0.2, 0.3, 0.4), probs(0.4, 0.3, 0.2, 0.1)),
    "draft is target": (probs(0.1, 0.2, 0.3, 0.4), probs(0.1, 0.2, 0.3, 0.4)),
    "disjoint": (probs(0.0, 0.0, 0.3, 0.7), probs(0.5, 0.5, 0.0, 0.0)),
    "target is one-hot": (probs(0.0, 1.0, 0.0, 0.0), probs(0.25, 0.25, 0.25, 0.25)),
    "draft is one-hot": (probs(0.1, 0.2, 0.3, 0.4), probs(0.0, 0.0, 1.0, 0.0)),
    "token zero": (probs(0.9, 0.1, 0.0, 0.0), probs(0.5, 0.5, 0.0, 0.0)),
}
SPECIAL = [case for case in CASES if case != "overlapping"]


def round_of_two(p: torch.Tensor, q: torch.Tensor, seed: int) -> list[int]:
    """Draft two tokens from q, accept by rejection against p, with the engine's naming of random numbers."""

    def named(i: int, purpose: Purpose) -> Draw:
        return Draw(PARAMS, seed, i, purpose)

    draft = [draw_from(q, named(i, Purpose.DRAFT)) for i in range(2)]
    path, last = accept_rejection(
        draft,
        chain(draft),
        [q, q],
        [p, p, p],
        lambda i: draw_uniform(named(i, Purpose.ACCEPT)),
        lambda i, weights: draw_from(weights, named(i + 1, Purpose.RECOVER if i < 1 else Purpose.TOKEN)),
    )
    return [*(draft[node] for node in path), last]


@functools.cache
def rounds_of(case: str) -> list[list[int]]:
    """5,000 rounds of a case, made once for all tests."""
    p, q = CASES[case]
    return [round_of_two(p, q, seed) for seed in range(5000)]


@pytest.mark.parametrize("case", ["overlapping", *(pytest.param(case, marks=pytest.mark.slow) for case in SPECIAL)])
def test_rejection_yields_the_target_distribution(case: str) -> None:
    """Every committed token is a draw from p, whatever its place in the round; SWIFT's B1, vLLM #9834."""
    p, rounds = CASES[case][0], rounds_of(case)
    for place in range(3):
        tokens = [r[place] for r in rounds if len(r) > place]
        if len(tokens) > 200:
            assert p_value(tokens, p) > 1e-3, (case, place)


def test_rejection_accepts_with_the_overlap() -> None:
    """The share of accepted first tokens is sum(min(p, q))."""
    p, q = CASES["overlapping"]
    accepted = sum(len(one) > 1 for one in rounds_of("overlapping"))
    assert stats.binomtest(accepted, 5000, float(torch.minimum(p, q).sum())).pvalue > 1e-3


@pytest.mark.slow
def test_rejection_of_a_draft_that_was_found() -> None:
    """A deterministic draft has no q: accepted with p(x), recovered from the others; what is committed is drawn from p.

    vLLM #40149 is the other way round: a draft that was drawn must come with what it was drawn from.
    """
    p = probs(0.1, 0.2, 0.3, 0.4)

    def first(seed: int) -> int:
        def named(purpose: Purpose) -> Draw:
            return Draw(PARAMS, seed, 0, purpose)

        path, last = accept_rejection(
            [3],
            [-1],
            None,
            [p, p],
            lambda _: draw_uniform(named(Purpose.ACCEPT)),
            lambda i, weights: draw_from(weights, named(Purpose.RECOVER if i < 0 else Purpose.TOKEN)),
        )
        return 3 if path else last

    tokens = [first(seed) for seed in range(5000)]
    assert p_value(tokens, p) > 1e-3


def test_rejection_of_equal_distributions_accepts_everything() -> None:
    p, _ = CASES["draft is target"]
    assert Counter(len(round_of_two(p, p, seed)) for seed in range(200)) == {3: 200}


def test_rejection_of_disjoint_distributions_accepts_nothing() -> None:
    p, q = CASES["disjoint"]
    assert Counter(len(round_of_two(p, q, seed)) for seed in range(200)) == {1: 200}


def test_residual_of_equal_distributions_is_the_target() -> None:
    """transformers divides by a sum of zero there (reference §2); ours keeps something to draw from."""
    p = probs(0.25, 0.75)
    assert residual(p, p).tolist() == [0.25, 0.75]
    assert residual(p, probs(0.5, 0.5)).tolist() == [0.0, 0.25]


# Node 3 is an alternative to node 1, nodes 4 and 5 to node 0.
TREE, TREE_PARENTS = [7, 8, 9, 5, 6, 0], [-1, 0, 1, 0, -1, -1]


@pytest.mark.parametrize(
    ("target", "path", "last"),
    [
        ([7, 8, 9, 1, 2, 3, 4], [0, 1, 2], 1),
        ([7, 5, 9, 1, 2, 3, 4], [0, 3], 2),
        ([7, 4, 9, 1, 2, 3, 4], [0], 4),
        ([6, 8, 9, 1, 2, 3, 4], [4], 3),
        ([0, 8, 9, 1, 2, 3, 4], [5], 4),
        ([1, 8, 9, 1, 2, 3, 4], [], 1),
        ([8, 8, 9, 1, 2, 3, 4], [], 8),  # a token of the draft, but not of this place
    ],
)
def test_coupled_with_alternatives(target: list[int], path: list[int], last: int) -> None:
    """target[i + 1] is the full model's token after node i; token 0 is a token like any other (SWIFT's B2, B3)."""
    assert accept_coupled(TREE, TREE_PARENTS, target) == (path, last)


@pytest.mark.parametrize("case", ["overlapping", *(pytest.param(case, marks=pytest.mark.slow) for case in SPECIAL)])
def test_rejection_with_alternatives_yields_the_target_distribution(case: str) -> None:
    """One drawn from q, then the two likeliest others of q, which were found: whatever comes out is a draw from p."""
    p, q = CASES[case]
    firsts, seconds, others = [], [], 0
    for seed in range(2000):

        def named(i: int, purpose: Purpose, seed: int = seed) -> Draw:
            return Draw(PARAMS, seed, i, purpose)

        drawn = draw_from(q, named(0, Purpose.DRAFT))
        alternatives = [token for token in q.argsort(descending=True).tolist() if token != drawn][:2]
        path, last = accept_rejection(
            [drawn, *alternatives],
            [-1, -1, -1],
            [q, None, None],
            [p] * 4,
            lambda node: draw_uniform(named(0, Purpose.ACCEPT), node),
            lambda node, weights: draw_from(weights, named(node + 1, Purpose.RECOVER if node < 0 else Purpose.TOKEN)),
        )
        committed = [*([drawn, *alternatives][node] for node in path), last]
        firsts.append(committed[0])
        seconds += committed[1:]
        others += bool(path and path[0])
    assert p_value(firsts, p) > 1e-3
    assert len(seconds) < 200 or p_value(seconds, p) > 1e-3
    assert (others > 50) == (case != "draft is target")
