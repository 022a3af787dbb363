"""Whose failure is it? The one's whose cause is its own, and not the one's that lost the others."""

from __future__ import annotations

from swift_backend.parallel.orders import Failed
from swift_backend.parallel.processes import failure_of

LOST = Failed("RankFailure: the ranks have lost each other: Connection closed by peer", own=False)
KILLED = Failed("it was ended by SIGKILL", own=True)


def test_a_cause_is_named_before_its_consequences() -> None:
    message = "rank 2 of tensor_parallel has failed: it was ended by SIGKILL"
    assert str(failure_of([(1, LOST), (2, KILLED), (3, LOST)])) == message


def test_of_several_the_first_is_named() -> None:
    assert str(failure_of([(3, KILLED), (1, KILLED)])).startswith("rank 3 of tensor_parallel")
    assert "rank 2 of tensor_parallel has failed: RankFailure: the ranks have lost" in str(failure_of([(2, LOST)]))
