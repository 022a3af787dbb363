"""The pipeline from logits to tokens, against transformers' processors and exact distributions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from scipy import stats

from swift_backend import noise
from swift_backend.noise import Purpose
from swift_backend.params import SamplingParams
from swift_backend.processors import make_processors
from swift_backend.sampling import Draw, draw_from, draw_tokens, mend
from swift_backend.sampling import probabilities as probabilities_of_rows
from tests.chi_square import p_value

ALL_IDS = torch.arange(50_000)
SETTINGS = [
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 1.0, "top_p": 0.9999999},
    {"temperature": 0.9, "min_p": 0.1},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 5.0, "top_p": 0.99},
    {"temperature": 0.6, "top_k": 1000, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 300, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_p": 1e-6},
]


def probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    return probabilities_of_rows(logits[None], [Draw(params, 0, 0)])[0]


def uniform(one: Draw, ids: torch.Tensor) -> torch.Tensor:
    return noise.uniform(torch.tensor([one.key]), ids)


def draw(position: int = 7, seed: int = 3, purpose: Purpose = Purpose.TOKEN, **params: float) -> Draw:
    return Draw(SamplingParams(**{"temperature": 1.0, **params}), seed, position, purpose)  # type: ignore[arg-type]


def transformers_scores(logits: torch.Tensor, settings: dict[str, float]) -> torch.Tensor:
    from transformers.generation import logits_process as processors

    chain = [processors.TemperatureLogitsWarper(settings["temperature"])]
    if "top_k" in settings:
        chain.append(processors.TopKLogitsWarper(int(settings["top_k"])))
    if "top_p" in settings:
        chain.append(processors.TopPLogitsWarper(settings["top_p"]))
    if "min_p" in settings:
        chain.append(processors.MinPLogitsWarper(settings["min_p"]))
    scores = logits[None]
    for processor in chain:
        scores = processor(torch.zeros(1, 1, dtype=torch.int64), scores)
    return scores[0]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("vocabulary", [12, 3000, 9000])
def test_filters_agree_with_transformers(settings: dict[str, float], vocabulary: int) -> None:
    logits = 3 * torch.randn(20, vocabulary, generator=torch.Generator().manual_seed(0))
    params = SamplingParams(**settings)  # type: ignore[arg-type]
    for row in logits:
        expected = torch.softmax(transformers_scores(row, settings).double(), dim=-1)
        torch.testing.assert_close(probabilities(row, params), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rest", [{}, {"top_p": 0.9}, {"top_p": 5e-324}, {"top_k": 1}, {"min_p": 1.0}])
@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40, 1e-38, 3e-39, 1e-9])
def test_the_lowest_temperatures_are_greedy(temperature: float, rest: dict[str, float]) -> None:
    """Logits over temperature overflow; the best token must neither be lost nor leave none."""
    logits = 30 * torch.randn(10, 300, generator=torch.Generator().manual_seed(2))
    draws = [draw(temperature=temperature, **rest)] * 10
    assert draw_tokens(logits, draws) == logits.argmax(-1).tolist()
    assert probabilities(logits[0], draws[0].params).sum() == 1


@pytest.mark.parametrize("top_p", [5e-324, 1e-300, 1e-9])
def test_a_token_always_survives(top_p: float) -> None:
    for rest in ({}, {"top_k": 1, "min_p": 1.0}, {"min_p": 5e-324}):
        params = SamplingParams(temperature=1.0, top_p=top_p, **rest)  # type: ignore[arg-type]
        kept = probabilities(torch.tensor([0.5, 2.0, 1.0]), params) > 0
        assert kept.tolist() == [False, True, False]


def test_greedy_takes_the_lowest_id_on_a_tie() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert draw_tokens(logits, [draw(temperature=0.0)] * 2) == [1, 0]


def test_greedy_probabilities_are_one_hot() -> None:
    assert probabilities(torch.tensor([0.0, 4.0, 4.0]), SamplingParams()).tolist() == [0.0, 1.0, 0.0]


def test_noise_is_named_by_seed_position_purpose_and_id() -> None:
    base = uniform(draw(), ALL_IDS)
    assert torch.equal(base, uniform(draw(), ALL_IDS))
    assert torch.equal(base[[5, 17]], uniform(draw(), torch.tensor([5, 17])))
    for other in (draw(seed=4), draw(position=8), draw(purpose=Purpose.DRAFT), draw(seed=2**63 - 1)):
        assert abs(float(torch.corrcoef(torch.stack((base, uniform(other, ALL_IDS))))[0, 1])) < 0.02


def test_noise_is_the_same_on_every_machine() -> None:
    """Literal values: a seed must mean the same tokens after an upgrade and on another device."""
    expected = torch.tensor(NOISE, dtype=torch.float64)
    torch.testing.assert_close(uniform(draw(position=7, seed=3), torch.tensor([0, 1, 49151])), expected, atol=0, rtol=0)


NOISE = [0.9394913230153853, 0.7295091264064101, 0.9805812532287882]


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**62])
def test_noise_is_uniform_and_open(seed: int) -> None:
    numbers = uniform(draw(seed=seed), ALL_IDS)
    assert float(numbers.min()) > 0 and float(numbers.max()) < 1
    assert stats.kstest(numbers.numpy(), "uniform").pvalue > 1e-3


def test_neighbouring_positions_are_independent() -> None:
    columns = torch.stack([uniform(draw(position=p), ALL_IDS[:1]) for p in range(4000)]).squeeze(1)
    assert stats.kstest(columns.numpy(), "uniform").pvalue > 1e-3
    pairs = torch.tensor([[a, b] for a, b in pairwise(columns.tolist())]).T
    assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.05


@pytest.mark.parametrize(
    "settings", [{"temperature": 1.0}, {"temperature": 0.6, "top_k": 4}, {"temperature": 2.0, "top_p": 0.7}]
)
def test_tokens_follow_their_distribution(settings: dict[str, float]) -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 1.5, 0.0, -3.0, 1.0, 0.9])
    params = SamplingParams(**settings)  # type: ignore[arg-type]
    draws = [Draw(params, seed=11, position=p) for p in range(6000)]
    tokens = draw_tokens(logits.expand(len(draws), -1), draws)
    assert p_value(tokens, probabilities(logits, params)) > 1e-3


def test_weights_are_drawn_in_proportion() -> None:
    weights = torch.tensor([0.0, 0.2, 0.0, 0.05, 0.15], dtype=torch.float64)
    tokens = [draw_from(weights, draw(position=p)) for p in range(6000)]
    assert p_value(tokens, weights / weights.sum()) > 1e-3


def test_greedy_rows_ignore_their_batch_mates() -> None:
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(1))
    mixed = [draw(temperature=0.0), draw(), draw(temperature=0.0), draw(seed=9)]
    alone = [draw_tokens(row[None], [one])[0] for row, one in zip(logits, mixed, strict=True)]
    assert draw_tokens(logits, mixed) == alone
    reseeded = [replace(one, seed=1000) if not one.greedy else one for one in mixed]
    assert draw_tokens(logits, reseeded)[::2] == alone[::2]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_p": 0.5}, [True, True, False, False]),
        ({"top_p": 0.51}, [True, True, True, False]),
        ({"top_k": 2}, [True, True, True, True]),  # transformers keeps all that share the k-th place
    ],
)
def test_ties_at_the_border_of_a_filter(settings: dict[str, float], kept: list[bool]) -> None:
    params = SamplingParams(temperature=1.0, **settings)  # type: ignore[arg-type]
    assert (probabilities(torch.zeros(4), params) > 0).tolist() == kept


def mixed_draws(count: int) -> list[Draw]:
    """Greedy and sampled rows, with and without processors, every filter alone and with others."""
    changes = [None, {"repetition_penalty": 1.8}, {"logit_bias": {3: 4.0, 7: -9.0}}, {"min_tokens": 9}, None]
    made = []
    for row in range(count):
        own = changes[row % 5] or {}
        params = SamplingParams(**{"temperature": 0.0, **SETTINGS[row % 11], **own} if row % 4 else own)  # type: ignore[arg-type]
        processors = make_processors(params, [3, 5, 8], [[4], [5, 6]] if row % 3 == 0 else [], [1])
        made.append(Draw(params, row, 40 + row, processors=processors, drafted=(5,) * (row % 2)))
    return made


@pytest.mark.parametrize("vocabulary", [12, 700])
@pytest.mark.parametrize("grain", [0.0, 0.5])
def test_a_row_does_not_depend_on_the_others(vocabulary: int, grain: float) -> None:
    """More rows than one block holds; with a grain there are ties, with a flat row top-p needs the whole vocabulary."""
    draws = mixed_draws(70)
    logits = torch.randn(70, vocabulary, generator=torch.Generator().manual_seed(3))
    logits = torch.round(logits / grain) * grain if grain else logits
    logits[::7] = 0.0
    before = logits.clone()
    alone = [draw_tokens(row[None], [one])[0] for row, one in zip(logits, draws, strict=True)]
    assert draw_tokens(logits, draws) == alone
    together = probabilities_of_rows(logits, draws)
    each = torch.cat([probabilities_of_rows(row[None], [one]) for row, one in zip(logits, draws, strict=True)])
    assert torch.equal(together, each)
    assert all(together[row, token] > 0 for row, token in enumerate(alone))
    assert torch.equal(logits, before), "logprobs are of the model's own logits"


def test_rows_that_are_no_numbers_are_told_and_zeroed() -> None:
    rows = torch.tensor([[1.0, 2.0], [float("nan"), 0.0], [float("inf"), 0.0], [-float("inf")] * 2, [-float("inf"), 1]])
    mended, usable = mend(rows)
    assert usable == [True, False, False, False, True]
    assert mended.tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [-float("inf"), 1.0]]
