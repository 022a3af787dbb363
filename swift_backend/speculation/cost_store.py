"""Was this machine measured before? Costs of passes by model, dtype and machine, kept beside the weight cache."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import re
import resource
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from swift_backend.runner import Runner
from swift_backend.speculation.cost_measuring import measuring_room
from swift_backend.speculation.cost_model import CostModel, RowCosts
from swift_backend.stored_json import read_json, write_json

VERSION = 3
# Of this process's threads, in a second, while costs are measured; a process that shares its cores has hundreds.
MOST_INTERRUPTIONS = 100.0
PARTS = ("attention", "mlp", "head", "rest")
# What no number of rows of a pass, and no seconds of a part of it, ever reach.
NUMBER_LIMIT = 1e6
# Of ModelConfig, what decides how long a pass takes.
SHAPE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "qkv_bias",
    "output_bias",
    "mlp_bias",
    "qk_norm",
    "parallel",
    "window",
    "windowed",
)
CPUINFO = Path("/proc/cpuinfo")

_log = logging.getLogger(__name__)


def stored_costs(runner: Runner, dtype_name: str, cache_dir: Path, measure: Callable[[], CostModel]) -> CostModel:
    """The costs that an earlier process measured here, else those that measure() finds, which are kept for the next.

    dtype_name: of the weights. What cannot be read, or written, is a warning and no error. What was measured while
    others had the cores is used, and not kept: it would mislead every later process.
    """
    path = cache_dir / "costs" / f"{costs_key(runner, dtype_name)}.json"
    content = read_json(path, VERSION)
    if content is not None:
        try:
            return _parse(content, runner.decoder.config.num_layers)
        except (KeyError, TypeError, ValueError) as error:
            _log.warning("%s holds no costs, so they are measured again: %r", path, error)
    begun, before = perf_counter(), interruptions()
    costs = measure()
    rate = (interruptions() - before) / max(perf_counter() - begun, 1.0)
    if rate > MOST_INTERRUPTIONS and runner.device.type == "cpu":
        _log.warning(
            "Others use this machine's cores (%.0f interruptions a second), so what passes cost here is measured again "
            "at the next start.",
            rate,
        )
    else:
        write_json(path, VERSION, _content(costs))
    return costs


def interruptions() -> int:
    """How often a thread of this process had to leave its core to another process, or to a thread of its own."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def costs_key(runner: Runner, dtype_name: str) -> str:
    """A name for all that the costs depend on: readable first, then a digest of everything."""
    config, device = runner.decoder.config, device_name(runner.device)
    facts = {
        "shape": {name: getattr(config, name) for name in SHAPE},
        "dtype": dtype_name,
        "device": device,
        "capability": torch.backends.cpu.get_cpu_capability() if runner.device.type == "cpu" else None,
        "kernel": runner.decoder.kernel,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "room": measuring_room(runner),  # a cache that holds only a few rows lets only those be measured
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    readable = f"{config.family}-{config.num_layers}x{config.hidden_size}-{dtype_name}-{device}"
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', readable)[:80]}-{digest}"


def device_name(device: torch.device, cpuinfo: Path = CPUINFO) -> str:
    """What the device's maker calls it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _content(costs: CostModel) -> dict[str, Any]:
    """Without scale, which was the machine's state at that moment."""
    parts = {name: getattr(costs, name) for name in PARTS}
    columns = {name: {"rows": part.rows, "seconds": part.seconds} for name, part in parts.items()}
    return {**columns, "per_key": costs.per_key}


def _parse(content: Any, num_layers: int) -> CostModel:
    """The inverse of _content; raises KeyError, TypeError or ValueError."""
    attention, mlp, head, rest = (_row_costs(content[name]) for name in PARTS)
    return CostModel(num_layers, attention, mlp, head, rest, per_key=_number(content["per_key"], int, float))


def _row_costs(column: Any) -> RowCosts:
    rows = tuple(_number(count, int) for count in column["rows"])
    seconds = tuple(_number(one, int, float) for one in column["seconds"])
    if not rows or len(rows) != len(seconds):
        raise ValueError(f"{len(seconds)} times of {len(rows)} numbers of rows")
    if not all(low < high for low, high in pairwise((0, *rows))) or not all(seconds):
        raise ValueError(f"{rows} must ascend from 1, and {seconds} must be positive")
    return RowCosts(rows, seconds)


def _number(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds or not 0 <= value < NUMBER_LIMIT:
        raise ValueError(f"{value!r:.40} is no number that could be here")
    return value
