"""Layer sets as bitmasks, and the guide's rule for choosing them."""

from __future__ import annotations

import pytest
import torch

from swift_backend.speculation.layer_set import LayerSet, open_sublayers
from swift_backend.speculation.similarity import most_redundant, skip_ratio


def test_a_layer_is_skipped_when_both_its_bits_are_set() -> None:
    layers = LayerSet(4, skip_mask=0b00_11_01_10)
    assert layers.kept == (0, 3, 6, 7)
    assert layers.skipped_layers == (2,)


def test_skipping_whole_layers() -> None:
    layers = LayerSet.skipping(5, [1, 3])
    assert layers.skip_mask == 0b00_11_00_11_00
    assert layers.kept == (0, 1, 4, 5, 8, 9)


def test_only_an_empty_set_is_false() -> None:
    assert not LayerSet(4)
    assert LayerSet(4, 1)


@pytest.mark.parametrize(
    ("num_layers", "skipped"), [(4, 0), (12, 2), (28, 11), (30, 12), (32, 14), (40, 18), (80, 40), (120, 60)]
)
def test_skipped_layers_by_depth(num_layers: int, skipped: int) -> None:
    """12–16 of 32 and 36–44 of 80 (guide); four or more layers are always kept."""
    chosen = most_redundant(torch.rand(num_layers), skip_ratio(num_layers), protected=2)
    assert len(chosen.skipped_layers) == min(skipped, num_layers - 4)


def test_the_most_similar_layers_go_and_the_ends_stay() -> None:
    similarity = torch.tensor([1.0, 1.0, 0.2, 0.9, 0.8, 0.9, 0.1, 1.0, 1.0])
    assert most_redundant(similarity, ratio=0.34, protected=2).skipped_layers == (3, 4, 5)


def test_no_room_between_protected_layers() -> None:
    assert not most_redundant(torch.rand(4), ratio=0.9, protected=2)


def test_ties_go_to_the_lower_layer() -> None:
    assert most_redundant(torch.ones(8), ratio=0.25, protected=2).skipped_layers == (2, 3)


def test_the_set_of_half_of_them_is_everybodys() -> None:
    """It is known how often its drafts are accepted; of a mixture it is not."""
    one, other = LayerSet(6, 0b0001_1100), LayerSet(6, 0b0110_0110)
    assert LayerSet.common([other, one, one]) == LayerSet.common([one, other, other, one]) == one
    assert LayerSet.common([other, one, LayerSet(6, 0b11), other]) == other
    assert [LayerSet.common([one, other]), LayerSet.common([other, one])] == [one, other]


def test_where_all_differ_it_is_what_most_of_them_skip() -> None:
    """Layers 2 and 3 have two votes; two layers each, so two for all."""
    sets = [LayerSet.skipping(6, [1, 2]), LayerSet.skipping(6, [2, 3]), LayerSet.skipping(6, [4, 3])]
    assert LayerSet.common(sets) == LayerSet.common(sets[::-1]) == LayerSet.skipping(6, [2, 3])


def test_it_is_as_large_as_they_are_on_average() -> None:
    """Eight, four and no sublayers: four, those with two votes, and not all that somebody skips."""
    sets = [LayerSet.skipping(8, [1, 2, 3, 4]), LayerSet.skipping(8, [3, 4]), LayerSet(8)]
    assert LayerSet.common(sets) == LayerSet.skipping(8, [3, 4])


def test_ties_go_to_the_lower_sublayer() -> None:
    sets = [LayerSet.skipping(6, [4]), LayerSet.skipping(6, [1]), LayerSet.skipping(6, [3])]
    assert LayerSet.common(sets) == LayerSet.skipping(6, [1])
    assert LayerSet.common([LayerSet(4, 0b11000), LayerSet(4, 0b00110), LayerSet(4, 0b1100000)]) == LayerSet(4, 0b00110)


def test_equal_sets_stay_as_they_are() -> None:
    odd = LayerSet(6, 0b101_0010)
    assert LayerSet.common([odd] * 3) == odd
    assert LayerSet.common([odd]) == odd
    assert LayerSet.common([LayerSet(6), LayerSet(6)]) == LayerSet(6)


def test_where_attention_and_mlp_are_one_the_attentions_number_stands_for_both() -> None:
    """So each set has one mask, whoever made it."""
    assert LayerSet.skipping(5, [1, 3], parallel=True) == LayerSet(5, 0b00_01_00_01_00)
    assert most_redundant(torch.ones(8), ratio=0.25, protected=2, parallel=True) == LayerSet(8, 0b01_01_00_00)
    assert list(open_sublayers(5, 1, parallel=True)) == [2, 4, 6]
    assert list(open_sublayers(5, 1, parallel=False)) == [2, 3, 4, 5, 6, 7]
