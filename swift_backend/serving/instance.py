"""Which part of the machine is this instance's? Its device, and its share of the cores."""

from __future__ import annotations

import json
from dataclasses import replace

from swift_backend.config import EngineConfig
from swift_backend.cores import available_cores


def fit_to_instance(config: EngineConfig, args: dict[str, str]) -> EngineConfig:
    """The configuration of one of the model's instances, from the arguments of initialize.

    What the configuration leaves open, the instance group decides: KIND_GPU gives each instance its device, KIND_CPU
    the CPU, and several instances share the cores. One alone has what torch takes, see loading.
    """
    kind, device = args.get("model_instance_kind", ""), config.device
    if device == "auto" and kind == "GPU":
        device = f"cuda:{args['model_instance_device_id']}"
    elif device == "auto" and kind == "CPU":
        device = "cpu"
    threads, instances = config.threads, num_instances(args)
    if threads is None and instances > 1:
        threads = max(1, available_cores() // instances)
    return replace(config, device=device, threads=threads)


def num_instances(args: dict[str, str]) -> int:
    """How many processes serve this model; a KIND_GPU group has `count` of them for each of its devices."""
    groups = json.loads(args["model_config"]).get("instance_group", [])
    counts = (group.get("count", 1) * max(1, len(group.get("gpus", []))) for group in groups)
    return max(1, sum(counts))
