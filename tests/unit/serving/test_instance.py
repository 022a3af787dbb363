"""Each instance gets its device and its share of the cores; what is set explicitly wins."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from swift_backend.config import EngineConfig
from swift_backend.errors import ConfigError
from swift_backend.loading import CPU_CACHE_SHARE, GPU_CACHE_SHARE
from swift_backend.serving import instance
from swift_backend.serving.instance import fit_to_instance, num_instances


def arguments(kind: str, *groups: dict[str, Any], device: str = "0") -> dict[str, str]:
    """What Triton hands to initialize."""
    config = json.dumps({"instance_group": list(groups)})
    return {"model_instance_kind": kind, "model_instance_device_id": device, "model_config": config}


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "available_cores", lambda: 8)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([], 1),
        ([{"count": 1, "gpus": []}], 1),
        ([{}], 1),
        ([{"count": 3, "gpus": []}], 3),
        ([{"count": 1, "gpus": [0, 1]}], 2),
        ([{"count": 2, "gpus": [0, 1, 2]}], 6),
        ([{"count": 2, "gpus": []}, {"count": 1, "gpus": [0, 1]}], 4),
    ],
)
def test_how_many_there_are(groups: list[dict[str, Any]], expected: int) -> None:
    assert num_instances(arguments("CPU", *groups)) == expected


def test_a_model_without_instance_group_has_one() -> None:
    assert num_instances({"model_config": "{}"}) == 1


@pytest.mark.parametrize(
    ("kind", "device", "expected"),
    [("GPU", "1", "cuda:1"), ("GPU", "0", "cuda:0"), ("CPU", "0", "cpu"), ("MODEL", "0", "auto")],
)
def test_the_device_follows_the_kind(kind: str, device: str, expected: str) -> None:
    assert fit_to_instance(EngineConfig(), arguments(kind, {"count": 1}, device=device)).device == expected


@pytest.mark.parametrize("kind", ["GPU", "CPU", "MODEL"])
def test_a_device_that_is_set_stays(kind: str) -> None:
    config = fit_to_instance(EngineConfig(device="cuda:3"), arguments(kind, {"count": 1}, device="1"))
    assert config.device == "cuda:3"


@pytest.mark.parametrize(
    ("groups", "threads"),
    [
        ([{"count": 1}], None),
        ([{"count": 2}], 4),
        ([{"count": 3}], 2),
        ([{"count": 1, "gpus": [0, 1]}], 4),
        ([{"count": 20}], 1),
    ],
)
def test_several_share_the_cores(groups: list[dict[str, Any]], threads: int | None) -> None:
    assert fit_to_instance(EngineConfig(), arguments("CPU", *groups)).threads == threads


def test_threads_that_are_set_are_each_ones_own() -> None:
    assert fit_to_instance(EngineConfig(threads=6), arguments("CPU", {"count": 4})).threads == 6


def test_ranks_and_a_gpu_for_each_instance_are_refused() -> None:
    assert fit_to_instance(EngineConfig(tensor_parallel=2), arguments("MODEL", {"count": 1})).tensor_parallel == 2
    with pytest.raises(ConfigError, match="tensor_parallel takes GPUs in a row: .* KIND_MODEL, not KIND_GPU"):
        fit_to_instance(EngineConfig(tensor_parallel=2), arguments("GPU", {"count": 1}))


def test_nothing_else_changes() -> None:
    config = EngineConfig(model="m", max_running=3, debug=True)
    fitted = fit_to_instance(config, arguments("CPU", {"count": 2}))
    assert fitted == EngineConfig(
        model="m", device="cpu", threads=4, max_running=3, debug=True, kv_cache_share=CPU_CACHE_SHARE / 2
    )


@pytest.mark.parametrize(("given", "shared"), [(None, CPU_CACHE_SHARE / 3), (0.6, 0.2)])
def test_several_share_the_memory(given: float | None, shared: float) -> None:
    fitted = fit_to_instance(EngineConfig(kv_cache_share=given), arguments("CPU", {"count": 2}, {"count": 1}))
    assert fitted.kv_cache_share == pytest.approx(shared)


@pytest.mark.parametrize(
    ("groups", "device", "beside"),
    [
        ([{"count": 1, "gpus": [0, 1]}], "1", 1),
        ([{"count": 2, "gpus": [0, 1]}], "1", 2),
        ([{"count": 2, "gpus": [0]}, {"count": 3, "gpus": [0, 1]}], "0", 5),
        ([{"count": 2, "gpus": [0]}, {"count": 3, "gpus": [0, 1]}], "1", 3),
    ],
)
def test_each_gpu_has_memory_of_its_own(
    monkeypatch: pytest.MonkeyPatch, groups: list[dict[str, Any]], device: str, beside: int
) -> None:
    monkeypatch.setattr(EngineConfig, "torch_device", lambda self: torch.device(self.device))
    fitted = fit_to_instance(EngineConfig(), arguments("GPU", *groups, device=device))
    assert fitted.kv_cache_share == pytest.approx(GPU_CACHE_SHARE / beside)


def test_one_alone_has_the_usual_share() -> None:
    assert fit_to_instance(EngineConfig(), arguments("CPU", {"count": 1})).kv_cache_share is None
