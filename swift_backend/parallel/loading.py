"""How does a rank load its part of the model? The same way in every process."""

from __future__ import annotations

import torch

from swift_backend.model.decoder import Decoder, load_decoder
from swift_backend.model.weights import Weights
from swift_backend.parallel.group import Group
from swift_backend.parallel.orders import Assignment
from swift_backend.parallel.share import ShareOfWeights

CacheSizes = tuple[int, int, int, int, torch.dtype, torch.device]


def load_share(task: Assignment, group: Group) -> Decoder:
    """The decoder of the rank's heads and part of the MLP; raises ModelLoadError."""
    share = task.share
    weights = ShareOfWeights(Weights.open(task.directory), task.config, share)
    dtype = getattr(torch, task.dtype)
    return load_decoder(
        share.of_config(task.config), weights, dtype, task.device, task.kernels, group.add_up, with_head=share.first
    )


def cache_sizes(task: Assignment, slots: int) -> CacheSizes:
    """What KVCache is made with, for the rank's heads."""
    own = task.share.of_config(task.config)
    dtype = torch.float32 if task.device.type == "cpu" else getattr(torch, task.dtype)
    return own.num_layers, slots, own.num_kv_heads, own.head_dim, dtype, task.device


def linear_bytes(decoder: Decoder) -> int:
    """Of what is split between the ranks."""
    return sum(linear.num_bytes for sublayer in decoder.sublayers for linear in sublayer.linears)
