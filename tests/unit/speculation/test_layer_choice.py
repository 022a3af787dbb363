"""Which layers a prompt's draft skips: read off its own rows of each pass, decided when it ends."""

from __future__ import annotations

import pytest
import torch

from swift_backend.params import SamplingParams
from swift_backend.sequence import Request, Sequence
from swift_backend.speculation.layer_choice import LayerChooser
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.similarity import LayerSimilarity

CHOOSER = LayerChooser(ratio=0.34, protected=1)  # two of six layers


def sequence(speculation: str = "fixed") -> Sequence:
    return Sequence(Request("r", [5] * 9, SamplingParams(speculation=speculation), print), 50, seed=0)


def seen(*rows: list[float]) -> LayerSimilarity:
    """A pass in which each row had these similarities, one for each layer."""
    probe = LayerSimilarity()
    for layer in range(len(rows[0])):
        cosines = torch.tensor([row[layer] for row in rows])
        before = torch.tensor([[1.0, 0.0]]).expand(len(rows), 2)
        probe.observe(2 * layer, before, before)
        probe.observe(2 * layer + 1, before, torch.stack([cosines, (1 - cosines**2).sqrt()], dim=1))
    return probe


LOW, HIGH = [0.5] * 6, [0.9] * 6


def test_the_ratio_is_the_guides_unless_one_is_given() -> None:
    assert LayerChooser.for_model(32, None, 2) == LayerChooser(14 / 32, 2)
    assert LayerChooser.for_model(32, 0.0, 2) == LayerChooser(0.0, 2)
    assert LayerChooser.for_model(32, 0.3, 4) == LayerChooser(0.3, 4)


@pytest.mark.parametrize(
    ("speculation", "decided", "watched"),
    [("fixed", False, True), ("auto", False, True), ("off", False, False), ("fixed", True, False)],
)
def test_a_pass_is_watched_while_somebody_needs_a_layer_set(speculation: str, decided: bool, watched: bool) -> None:
    """Watching costs time: not for requests that never draft, and not for those that know already."""
    done, one = sequence(), sequence(speculation)
    done.layer_set = LayerSet(6)
    one.layer_set = LayerSet(6) if decided else None
    assert (CHOOSER.watch([done, one]) is not None) == watched
    assert CHOOSER.watch([]) is None


def test_each_prompt_gets_the_layers_of_its_own_rows() -> None:
    """Between them a decoding sequence with its draft, which is left as it is."""
    first, decoding, second = sequence(), sequence(), sequence("auto")
    decoding.layer_set = LayerSet.skipping(6, [1])
    rows = [
        [0.1, 0.8, 0.2, 0.9, 0.1, 1.0],
        [0.1, 0.8, 0.2, 0.9, 0.1, 1.0],
        *[[1.0] * 6] * 3,
        [1.0, 0.1, 0.7, 0.1, 0.8, 0.1],
    ]
    CHOOSER.note(seen(*rows), [(first, 2, True), (decoding, 3, True), (second, 1, True)])
    assert first.layer_set == LayerSet.skipping(6, [1, 3])
    assert second.layer_set == LayerSet.skipping(6, [2, 4])
    assert decoding.layer_set == LayerSet.skipping(6, [1])
    assert decoding.similarity is None
    assert first.similarity is not None and first.similarity_tokens == 2
    torch.testing.assert_close(first.similarity, torch.tensor([0.2, 1.6, 0.4, 1.8, 0.2, 2.0]))


def test_a_chunked_prompt_decides_at_its_end_by_all_its_chunks() -> None:
    """Three rows speak for layers 1 and 2, one row, the last, for 3 and 4."""
    one = sequence()
    CHOOSER.note(seen(*[[0.0, 0.9, 0.9, 0.6, 0.6, 0.0]] * 3), [(one, 3, False)])
    assert one.layer_set is None
    CHOOSER.note(seen([0.0, 0.6, 0.6, 0.9, 0.9, 0.0]), [(one, 1, True)])
    assert one.layer_set == LayerSet.skipping(6, [1, 2])
    assert one.mean_similarity is not None
    torch.testing.assert_close(one.mean_similarity, torch.tensor([0.0, 0.825, 0.825, 0.675, 0.675, 0.0]))


def test_a_prompt_that_begins_in_the_cache_counts_that_part() -> None:
    """Eight cached tokens outweigh the one that is computed; without them it would decide alone."""
    reusing, fresh = sequence(), sequence()
    reusing.begin_with(8, torch.tensor([0.0, 0.9, 0.9, 0.6, 0.6, 0.0]))
    row = [0.0, 0.6, 0.6, 0.9, 0.9, 0.0]
    CHOOSER.note(seen(row, row), [(reusing, 1, True), (fresh, 1, True)])
    assert reusing.layer_set == LayerSet.skipping(6, [1, 2])
    assert fresh.layer_set == LayerSet.skipping(6, [3, 4])
    assert (reusing.similarity_tokens, reusing.reused_tokens) == (9, 8)


def test_requests_that_never_draft_are_not_measured() -> None:
    one, off = sequence(), sequence("off")
    CHOOSER.note(seen(HIGH, LOW), [(off, 1, True), (one, 1, True)])
    assert off.layer_set is None and off.similarity is None
    assert one.mean_similarity is not None
    torch.testing.assert_close(one.mean_similarity, torch.tensor(LOW))
