"""Which part of the machine is this instance's? Its device, and its share of the cores."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from swift_backend.config import EngineConfig
from swift_backend.cores import available_cores
from swift_backend.errors import ConfigError
from swift_backend.loading import cache_share


def fit_to_instance(config: EngineConfig, args: dict[str, str]) -> EngineConfig:
    """The configuration of one of the model's instances, from the arguments of initialize.

    What the configuration leaves open, the instance group decides: KIND_GPU gives each instance its device, KIND_CPU
    the CPU; several instances share the cores, and those on one device its memory. One alone has what torch takes, see
    loading. Raises ConfigError where the device is not there, or where instances and ranks would share GPUs.
    """
    kind, device = args.get("model_instance_kind", ""), config.device
    if kind == "GPU" and config.tensor_parallel > 1:
        raise ConfigError("tensor_parallel takes GPUs in a row: the instance_group must be of KIND_MODEL, not KIND_GPU")
    if device == "auto" and kind == "GPU":
        device = f"cuda:{args['model_instance_device_id']}"
    elif device == "auto" and kind == "CPU":
        device = "cpu"
    config = replace(config, device=device)
    instances = num_instances(args)
    if instances == 1:
        return config
    threads = config.threads or max(1, available_cores() // instances)
    on_device = config.torch_device()
    beside = _num_on_gpu(args) if kind == "GPU" and on_device.type == "cuda" else instances
    return replace(config, threads=threads, kv_cache_share=cache_share(config, on_device) / beside)


def num_instances(args: dict[str, str]) -> int:
    """How many processes serve this model; a KIND_GPU group has `count` of them for each of its devices."""
    counts = (group.get("count", 1) * max(1, len(group.get("gpus", []))) for group in _groups(args))
    return max(1, sum(counts))


def _num_on_gpu(args: dict[str, str]) -> int:
    """How many of them have the same device as this one."""
    device = int(args["model_instance_device_id"])
    return max(1, sum(group.get("count", 1) for group in _groups(args) if device in group.get("gpus", [device])))


def _groups(args: dict[str, str]) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = json.loads(args["model_config"]).get("instance_group", [])
    return groups
