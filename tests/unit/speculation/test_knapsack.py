"""The layer set with the most expected tokens per second, against all there are; and what it learns from trials."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_backend.speculation.cost_model import CostModel, RowCosts
from swift_backend.speculation.knapsack import Knapsack, loss
from swift_backend.speculation.layer_set import LayerSet


def costs(
    layers: int, attention: float = 1.0, mlp: float = 1.0, growth: float = 0.2, per_key: float = 0.0
) -> CostModel:
    """Seconds of one row; each further one takes `growth` as much, and a head and the rest take one of either."""

    def rows(seconds: float) -> RowCosts:
        return RowCosts((1, 2), (seconds, seconds * (1 + growth)))

    return CostModel(layers, rows(attention), rows(mlp), rows(1.0), rows(0.1), per_key)


def kinds(layer_set: LayerSet) -> tuple[int, int]:
    """How many attentions and MLPs are left out."""
    left_out = [one for one in range(2 * layer_set.num_layers) if not layer_set.keeps(one)]
    return sum(one % 2 == 0 for one in left_out), sum(one % 2 for one in left_out)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Knapsack, torch.Tensor, float]:
    layers, protected = draw(st.sampled_from([(3, 0), (4, 0), (3, 1), (4, 1)]))
    model = costs(
        layers,
        attention=draw(st.floats(0.01, 3.0)),
        mlp=draw(st.floats(0.01, 3.0)),
        growth=draw(st.floats(0.0, 1.0)),
        per_key=draw(st.floats(0.0, 0.01)),
    )
    similarity = draw(st.lists(st.floats(-1.0, 1.0) | st.floats(0.9, 1.0), min_size=2 * layers, max_size=2 * layers))
    knapsack = Knapsack(model, protected, draw(st.integers(1, 6)), decay=draw(st.floats(0.05, 20.0)))
    return knapsack, torch.tensor(similarity, dtype=torch.float32), draw(st.floats(0.0, 2000.0))


@settings(deadline=None)
@given(problems())
def test_no_other_set_is_faster(problem: tuple[Knapsack, torch.Tensor, float]) -> None:
    """Of all that spare the protected layers and leave something out, if only because it has to."""
    knapsack, similarity, context = problem
    layers, spared = knapsack.costs.num_layers, 2 * knapsack.protected

    def value(mask: int) -> float:
        alpha = math.exp(-knapsack.decay * sum(1 - float(s) for i, s in enumerate(similarity) if mask >> i & 1))
        return knapsack.costs.drafting_speed(alpha, mask, context, knapsack.most_draft_tokens)

    allowed = [mask << spared for mask in range(1, 1 << 2 * layers - 2 * spared)]
    chosen = knapsack.choose(similarity, context)
    assert chosen.num_layers == layers
    assert chosen.skip_mask in allowed
    assert value(chosen.skip_mask) == pytest.approx(max(map(value, allowed)), rel=1e-6)


@pytest.mark.parametrize("protected", [0, 1, 2])
def test_protected_layers_are_spared(protected: int) -> None:
    """Although they change nothing, and leaving out everything between them is best."""
    similarity = torch.tensor([1.0] * 4 + [0.999] * 4 + [1.0] * 4)
    chosen = Knapsack(costs(6), protected, 5).choose(similarity, 0.0)
    assert chosen == LayerSet.skipping(6, range(protected, 6 - protected))


def test_something_is_left_out_even_where_drafts_lose() -> None:
    """What changes least and saves most: it is for others to decide whether to draft."""
    similarity = torch.tensor([-1.0] * 5 + [-0.9] + [-1.0] * 2)
    knapsack = Knapsack(costs(4, growth=1.0), 0, 5, decay=20.0)
    chosen = knapsack.choose(similarity, 0.0)
    assert chosen
    assert knapsack.costs.drafting_speed(knapsack.alpha(chosen, similarity), chosen.skip_mask, 0.0, 5) < 1


@pytest.mark.parametrize(("layers", "protected"), [(2, 1), (1, 1), (3, 2)])
def test_nothing_is_left_out_where_all_layers_are_spared(layers: int, protected: int) -> None:
    assert Knapsack(costs(layers), protected, 5).choose(torch.ones(2 * layers), 0.0) == LayerSet(layers)


def test_where_attention_is_nearly_free_mlps_go_and_the_reverse() -> None:
    """All change the states alike, so only what they cost tells them apart."""
    similarity = torch.full((8,), 0.97)
    without_mlps = Knapsack(costs(4, attention=1e-6), 0, 5).choose(similarity, 0.0)
    without_attentions = Knapsack(costs(4, mlp=1e-6), 0, 5).choose(similarity, 0.0)
    assert (kinds(without_mlps), kinds(without_attentions)) == ((0, 4), (4, 0))


def test_the_longer_the_context_the_more_attentions_go() -> None:
    """At its end, and none at its beginning, where they cost a hundredth of an MLP."""
    similarity = torch.full((8,), 0.9)
    knapsack = Knapsack(costs(4, attention=0.01, per_key=0.01), 0, 5)
    assert kinds(knapsack.choose(similarity, 0.0)) == (0, 4)
    assert kinds(knapsack.choose(similarity, 100_000.0)) == (4, 0)


def test_of_a_kind_those_that_change_the_states_least_go() -> None:
    similarity = torch.tensor([0.2, 0.99, 0.99, 0.3, 0.1, 0.98, 0.97, 0.2])
    assert Knapsack(costs(4), 0, 5).choose(similarity, 0.0) == LayerSet(4, 0b0110_0110)


def test_the_more_a_loss_costs_the_less_is_left_out() -> None:
    similarity = torch.tensor([0.99, 0.98, 0.96, 0.92, 0.84, 0.68, 0.36, 0.0])
    chosen = [Knapsack(costs(4), 0, 5, decay=decay).choose(similarity, 0.0) for decay in (0.01, 1.0, 5.0)]
    assert [one.skip_mask for one in chosen] == [0b1111_1111, 0b1111, 0b11]


def test_losses_add_up() -> None:
    similarity = torch.tensor([0.9, 0.8, 0.5, 1.0, -1.0, 0.0])
    assert loss(LayerSet(3), similarity) == 0.0
    assert loss(LayerSet(3, 0b000110), similarity) == pytest.approx(0.2 + 0.5)
    assert loss(LayerSet(3, 0b111111), similarity) == pytest.approx(0.1 + 0.2 + 0.5 + 0.0 + 2.0 + 1.0)


def test_a_cosine_beyond_1_is_no_gain() -> None:
    """Rounding makes such; α would be above 1."""
    similarity = torch.tensor([1.0000001, 1.0000001])
    assert loss(LayerSet(1, 0b11), similarity) == 0.0
    assert Knapsack(costs(1), 0, 5).alpha(LayerSet(1, 0b11), similarity) == 1.0


def test_alpha_falls_with_the_loss() -> None:
    similarity = torch.tensor([0.9, 0.8, 0.5, 1.0])
    knapsack = Knapsack(costs(2), 0, 5, decay=2.0)
    assert knapsack.alpha(LayerSet(2), similarity) == 1.0
    assert knapsack.alpha(LayerSet(2, 0b0110), similarity) == pytest.approx(math.exp(-2 * 0.7))


SIMILARITY = torch.tensor([0.99, 0.9, 0.97, 0.8, 0.95, 0.85, 0.98, 0.9])


def learn(knapsack: Knapsack, truth: float, trials: int, tokens: int) -> list[float]:
    """The decay after each trial of a set of three sublayers at random, whose drafted tokens are right by chance."""
    rng = random.Random(7)
    seen = []
    for _ in range(trials):
        tried = LayerSet(4, sum(1 << one for one in rng.sample(range(8), 3)))
        alpha = math.exp(-truth * loss(tried, SIMILARITY))
        right = sum(rng.random() < alpha for _ in range(tokens))
        knapsack.note(tried, SIMILARITY, right / tokens)
        seen.append(knapsack.decay)
    return seen


@pytest.mark.parametrize("truth", [0.5, 1.0, 3.0, 10.0])
def test_it_learns_what_a_loss_does_to_acceptance(truth: float) -> None:
    """From trials of ten tokens, which by chance are often all right or all wrong."""
    decays = learn(Knapsack(costs(4), 0, 5), truth, trials=1000, tokens=10)
    learnt = decays[300:]
    assert sum(learnt) / len(learnt) == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_one_trial_says_little(alpha: float) -> None:
    knapsack = Knapsack(costs(4), 0, 5)
    knapsack.note(LayerSet(4, 0b1111_1111), SIMILARITY, alpha)
    assert 0.03 < abs(math.log(knapsack.decay)) < 0.3
    assert (knapsack.decay > 1) == (alpha == 0.0)


def test_what_was_expected_changes_nothing() -> None:
    knapsack = Knapsack(costs(4), 0, 5, decay=1.7)
    tried = LayerSet(4, 0b0010_1010)
    knapsack.note(tried, SIMILARITY, knapsack.alpha(tried, SIMILARITY))
    assert knapsack.decay == 1.7


@pytest.mark.parametrize("similarity", [1.0, 0.9999])
def test_a_set_that_hardly_changes_the_states_says_nothing(similarity: float) -> None:
    """Its drafts may be wrong for other reasons, and no decay explains them."""
    knapsack = Knapsack(costs(4), 0, 5)
    for _ in range(100):
        knapsack.note(LayerSet(4, 0b11), torch.full((8,), similarity), 0.2)
    assert knapsack.decay == 1.0


def test_where_attention_and_mlp_are_one_only_attentions_go() -> None:
    """What holds the place of an MLP costs nothing and changes nothing: it would always go."""
    similarity = torch.tensor([0.9, 1.0, 0.2, 1.0, 0.99, 1.0, 0.9, 1.0])
    knapsack = Knapsack(costs(4, mlp=1e-6), 1, 5, decay=5.0, parallel=True)
    assert knapsack.choose(similarity, 0.0) == LayerSet(4, 0b00_01_00_00)
