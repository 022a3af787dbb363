"""Which rows see which keys."""

from __future__ import annotations

import torch

from swift_backend.batch import BatchShape, RowGroup, build_batch

CPU = torch.device("cpu")


def test_prefill_plain_row_and_verify_group_in_one_pass() -> None:
    batch = build_batch(
        [RowGroup([5, 6, 7], 0, 100, 0), RowGroup([8], 4, 200, 1), RowGroup([9, 1, 2], 2, 300, 2)], CPU, BatchShape(2)
    )
    assert batch.token_ids.tolist() == [5, 6, 7, 8, 9, 1, 2]
    assert batch.positions.tolist() == [0, 1, 2, 4, 2, 3, 4]
    assert batch.slots.tolist() == [100, 101, 102, 204, 302, 303, 304]
    assert batch.logit_rows.tolist() == [3, 5, 6]
    prefill, plain, verify = batch.views
    assert (prefill.key_start, prefill.key_end, prefill.causal, prefill.mask) == (100, 103, True, None)
    assert (plain.key_start, plain.key_end, plain.causal, plain.mask) == (200, 205, False, None)
    assert (verify.key_start, verify.key_end, verify.causal) == (300, 305, False)
    assert verify.mask is not None
    assert seen(verify.mask) == 2 * [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]  # both heads of a group


def test_no_row_sees_beyond_its_window() -> None:
    batch = build_batch([RowGroup([1, 2, 3], 4, 10, 1), RowGroup([7], 9, 50, 1)], CPU, BatchShape(1, 3))
    group, lone = batch.window_views
    assert (group.key_start, group.key_end) == (12, 17)
    assert group.mask is not None
    assert seen(group.mask) == [[1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert (lone.key_start, lone.key_end, lone.mask) == (57, 60, None)
    assert batch.views[1].key_start == 50


def test_a_prompt_within_the_window_is_plainly_causal() -> None:
    batch = build_batch([RowGroup([1, 2, 3], 0, 0, 1)], CPU, BatchShape(1, 3))
    assert batch.window_views[0].causal
    assert not build_batch([RowGroup([1, 2, 3, 4], 0, 0, 1)], CPU, BatchShape(1, 3)).window_views[0].causal


def seen(mask: torch.Tensor) -> list[list[int]]:
    assert set(mask.unique().tolist()) <= {0.0, -torch.inf}
    return (mask == 0).int().tolist()


def test_a_tree_sees_what_leads_to_each_row() -> None:
    """Row 0 is the last token, 1 and 2 follow it, 3 follows 1; slots are consecutive, positions are depths."""
    group = RowGroup([5, 6, 7, 8], 4, 100, 4, (-1, 0, 0, 1))
    batch = build_batch([group], CPU, BatchShape(1))
    assert batch.positions.tolist() == [4, 5, 5, 6]
    assert batch.slots.tolist() == [104, 105, 106, 107]
    [view] = batch.views
    assert view.mask is not None
    seen = (view.mask == 0).int().tolist()
    assert seen == [
        [1, 1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0, 1, 0],
        [1, 1, 1, 1, 1, 1, 0, 1],
    ]


def test_a_window_counts_positions_and_not_slots() -> None:
    """The deepest row is at position 6: with a window of 3 it sees positions 4 to 6, and its sibling's slot never."""
    group = RowGroup([5, 6, 7, 8], 4, 100, 4, (-1, 0, 0, 1))
    [view] = build_batch([group], CPU, BatchShape(1, 3)).window_views
    assert (view.key_start, view.key_end) == (102, 108)
    assert view.mask is not None
    assert (view.mask == 0).int().tolist() == [
        [1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 1, 1, 0, 1, 0],
        [0, 0, 1, 1, 0, 1],
    ]
