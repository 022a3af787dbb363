"""How much each sublayer, and each layer, changes a text's hidden states; and which sublayers may go, by that."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.similarity import (
    LayerSimilarity,
    Profile,
    most_redundant,
    most_redundant_sublayers,
    skip_ratio,
)

A, B, C = (
    torch.tensor([[1.0, 0.0]] * 3),
    torch.tensor([[5.0, 5.0]] * 3),
    torch.tensor([[0.0, 2.0], [3.0, 0.0], [1.0, 1.0]]),
)


def observed(probe: LayerSimilarity, *states: torch.Tensor) -> torch.Tensor:
    """The profiles after a pass whose hidden states were these, one sublayer after another."""
    for sublayer, (before, after) in enumerate(itertools.pairwise(states)):
        probe.observe(sublayer, before, after)
    return probe.profiles()


def test_it_is_the_cosine_of_input_and_output() -> None:
    """Two layers of two sublayers; rows 0-1 belong to one prompt and row 2 to another."""
    first, second = observed(LayerSimilarity([(0, 2), (2, 3)]), A, B, C, A, C)
    half = 0.5**0.5
    torch.testing.assert_close(Profile(first).sublayers, torch.tensor([half, half, 0.5, 0.5]))
    torch.testing.assert_close(Profile(first).layers, torch.tensor([0.5, 1.0]))
    torch.testing.assert_close(Profile(second).sublayers, torch.tensor([half, 1.0, half, half]))
    torch.testing.assert_close(Profile(second).layers, torch.tensor([half, 1.0]))


def test_rows_between_ranges_do_not_count() -> None:
    [profile] = observed(LayerSimilarity([(2, 3)]), A, B, C)
    torch.testing.assert_close(profile, observed(LayerSimilarity([(0, 1)]), A[2:], B[2:], C[2:])[0])


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_every_row_counts_alike(rows: int) -> None:
    """Against torch's own cosine, in ranges that begin after others."""
    states = [torch.randn(rows + 5, 4) for _ in range(5)]
    first, second = observed(LayerSimilarity([(0, 5), (5, rows + 5)]), *states)
    for profile, part in ((first, slice(0, 5)), (second, slice(5, None))):
        for i in range(4):
            expected = F.cosine_similarity(states[i][part], states[i + 1][part], dim=-1).mean()
            torch.testing.assert_close(Profile(profile).sublayers[i], expected)
        for i in range(2):
            expected = F.cosine_similarity(states[2 * i][part], states[2 * i + 2][part], dim=-1).mean()
            torch.testing.assert_close(Profile(profile).layers[i], expected)


def test_a_state_of_zeros_is_like_nothing() -> None:
    [profile] = observed(LayerSimilarity([(0, 1)]), torch.zeros(1, 4), torch.ones(1, 4), torch.zeros(1, 4))
    assert profile.tolist() == [0.0, 0.0, 0.0]


def test_states_of_any_dtype() -> None:
    [profile] = observed(LayerSimilarity([(0, 3)]), A.bfloat16(), B.bfloat16(), C.bfloat16())
    assert profile.dtype == torch.float32


RISING = torch.arange(16) / 16  # of eight layers


@pytest.mark.parametrize(("ratio", "skipped"), [(0.0, 0), (0.05, 0), (0.25, 4), (0.3, 4), (0.5, 8), (1.0, 12)])
def test_twice_as_many_sublayers_go_as_the_guide_skips_layers(ratio: float, skipped: int) -> None:
    """0.3 of eight layers are two; no more go than lie between the protected ends."""
    chosen = most_redundant_sublayers(RISING, ratio, protected=1)
    assert chosen == LayerSet(8, sum(1 << one for one in range(14 - skipped, 14)))
    assert bool(chosen) == (skipped > 0)


@pytest.mark.parametrize("num_layers", [12, 28, 30, 32, 40, 80])
def test_the_time_saved_is_that_of_the_guides_layers(num_layers: int) -> None:
    """Both kinds of choice leave out as much, by the guide's ratio for the depth."""
    similarity, ratio = torch.rand(2 * num_layers), skip_ratio(num_layers)
    layers = most_redundant(torch.rand(num_layers), ratio, protected=2)
    sublayers = most_redundant_sublayers(similarity, ratio, protected=2)
    assert sublayers.skip_mask.bit_count() == layers.skip_mask.bit_count() == 2 * len(layers.skipped_layers) > 0


def test_attentions_and_mlps_are_ranked_alike() -> None:
    """The most similar first, whatever its kind, and a layer may lose only one of the two."""
    similarity = torch.tensor([0.9, 0.9, 0.1, 0.8, 0.6, 0.2, 0.3, 0.7, 0.9, 0.9])
    assert most_redundant_sublayers(similarity, ratio=0.2, protected=1) == LayerSet(5, 0b00_10_00_10_00)
    assert most_redundant_sublayers(similarity, ratio=0.4, protected=1) == LayerSet(5, 0b00_11_01_10_00)


@pytest.mark.parametrize("protected", [0, 1, 3])
def test_the_ends_stay(protected: int) -> None:
    """Although they change the states least of all."""
    similarity = torch.tensor([1.0] * 2 + [0.5] * 10 + [1.0] * 2)
    chosen = most_redundant_sublayers(similarity, ratio=6 / 7, protected=protected)
    between = range(2 * protected, 14 - 2 * protected)
    assert all(chosen.keeps(one) for one in range(14) if one not in between)
    assert chosen.skip_mask.bit_count() == min(12, len(between))


@pytest.mark.parametrize(("num_layers", "protected"), [(4, 2), (3, 2), (1, 1), (2, 5)])
def test_nothing_goes_where_all_layers_are_protected(num_layers: int, protected: int) -> None:
    assert most_redundant_sublayers(torch.ones(2 * num_layers), 0.9, protected) == LayerSet(num_layers)


def test_ties_go_to_the_lower_sublayer() -> None:
    assert most_redundant_sublayers(torch.ones(16), ratio=0.25, protected=2) == LayerSet(8, 0b1111 << 4)


def test_where_attention_and_mlp_are_one_as_many_go_as_the_guide_skips_layers() -> None:
    """What holds the place of an MLP changes nothing, and is no candidate all the same."""
    similarity = torch.tensor([0.9, 1.0, 0.1, 1.0, 0.8, 1.0, 0.3, 1.0, 0.9, 1.0])
    assert most_redundant_sublayers(similarity, 0.4, protected=1, parallel=True) == LayerSet(5, 0b00_01_01_00_00)
