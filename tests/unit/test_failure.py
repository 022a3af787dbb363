"""Whose affair is an exception?"""

from __future__ import annotations

import pytest
import torch

from swift_backend.errors import EngineFailure, RankFailure
from swift_backend.failure import ends_engine, engine_failure, request_failure


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RankFailure("rank 1 of tensor_parallel has failed: it was ended by SIGKILL"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered", 700),
    ],
)
def test_what_ends_the_engine(error: Exception) -> None:
    assert ends_engine(error)


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes do not match"), ValueError("DefaultCPUAllocator"), KeyError(3), EngineFailure("x")]
)
def test_what_is_one_requests_affair(error: Exception) -> None:
    assert not ends_engine(error)


def test_a_real_allocation_that_fails_is_recognised() -> None:
    """A petabyte: torch names its allocator in a bare RuntimeError."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert type(caught.value) is RuntimeError
    assert ends_engine(caught.value)


def test_the_client_learns_the_kind_and_the_log_the_cause() -> None:
    """No message of an inner exception reaches a client: it may hold another's text or a path."""
    error = ValueError("/home/secret")
    failure = request_failure(error)
    assert str(failure) == "this request has failed (ValueError); the server's log says more"
    assert failure.__cause__ is error


def test_of_an_engine_that_ended_clients_learn_what_is_ours_to_tell() -> None:
    rank = RankFailure("rank 1 of tensor_parallel has failed: it was ended by SIGKILL")
    assert engine_failure(rank) is rank
    other = engine_failure(ValueError("/home/secret"))
    assert str(other) == "the engine has failed (ValueError); the server's log says more"
