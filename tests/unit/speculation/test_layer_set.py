"""Layer sets as bitmasks, and the guide's rule for choosing them."""

from __future__ import annotations

import pytest
import torch

from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.similarity import LayerSimilarity, most_redundant, skip_ratio


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


def test_similarity_is_the_cosine_of_a_layers_input_and_output() -> None:
    """Two layers of two sublayers; rows 0-1 belong to one prompt and row 2 to another."""
    a, b, c = (
        torch.tensor([[1.0, 0.0]] * 3),
        torch.tensor([[5.0, 5.0]] * 3),
        torch.tensor([[0.0, 2.0], [3.0, 0.0], [1.0, 1.0]]),
    )
    probe = LayerSimilarity()
    probe.observe(0, a, b)
    probe.observe(1, b, c)
    probe.observe(2, c, a)
    probe.observe(3, a, c)
    expected = torch.tensor([[0.0 + 1.0, 2.0], [0.5**0.5, 1.0]])
    torch.testing.assert_close(probe.sums([(0, 2), (2, 3)]), expected)
