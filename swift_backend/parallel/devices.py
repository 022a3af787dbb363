"""Which device is each rank's? The CPU for all of them, or GPUs in a row."""

from __future__ import annotations

import torch

from swift_backend.errors import ConfigError


def rank_devices(first: torch.device, size: int) -> list[torch.device]:
    """Of each rank, where rank 0 has this one; ConfigError when there are not so many GPUs."""
    if first.type == "cpu":
        return [first] * size
    index, count = first.index or 0, torch.cuda.device_count()
    if index + size > count:
        raise ConfigError(
            f"tensor_parallel is {size}, but from cuda:{index} on this machine has {count - index} CUDA device"
            f"{'' if count - index == 1 else 's'}"
        )
    return [torch.device("cuda", index + rank) for rank in range(size)]


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a GPU; None for the CPU, whose memory is nobody's own."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
