"""Ranks have a GPU each, in a row, or all of them the CPU."""

from __future__ import annotations

import pytest
import torch

from swift_backend.errors import ConfigError
from swift_backend.parallel.devices import free_memory, rank_devices


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.parametrize(
    ("first", "size", "expected"),
    [
        ("cuda", 2, ["cuda:0", "cuda:1"]),
        ("cuda:0", 4, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        ("cuda:2", 2, ["cuda:2", "cuda:3"]),
        ("cpu", 3, ["cpu", "cpu", "cpu"]),
    ],
)
def test_they_are_in_a_row(first: str, size: int, expected: list[str]) -> None:
    assert list(map(str, rank_devices(torch.device(first), size))) == expected


@pytest.mark.parametrize(
    ("first", "size", "message"),
    [
        ("cuda", 5, "tensor_parallel is 5, but from cuda:0 on this machine has 4 CUDA devices"),
        ("cuda:3", 2, "tensor_parallel is 2, but from cuda:3 on this machine has 1 CUDA device$"),
    ],
)
def test_more_than_there_are_are_refused(first: str, size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rank_devices(torch.device(first), size)


def test_the_cpus_memory_is_nobodys_own() -> None:
    assert free_memory(torch.device("cpu")) is None
