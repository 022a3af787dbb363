"""How does a configuration become a model in memory? Weights, cache, threads and tokenizer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from swift_backend.config import EngineConfig, resolve_dtype, stored_dtype
from swift_backend.cores import available_cores
from swift_backend.errors import ConfigError
from swift_backend.kv_cache import KVCache
from swift_backend.memory import available_memory
from swift_backend.model.checkpoint import resolve_model
from swift_backend.model.config import ModelConfig, read_config
from swift_backend.model.decoder import load_decoder
from swift_backend.model.linear import Kernels, ours_is_fastest
from swift_backend.model.weights import Weights
from swift_backend.parallel.orders import Assignment
from swift_backend.parallel.share import Share
from swift_backend.parallel.starting import start_ranks
from swift_backend.runner import Runner
from swift_backend.text.tokenizer import Tokenizer

# What is left is for activations, and on a CPU for everything else on the machine.
CPU_CACHE_SHARE, GPU_CACHE_SHARE = 0.25, 0.8
CPU_CACHE_CONTEXTS = 4
KERNELS_KEPT = 128


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the engine runs on."""

    directory: Path
    dtype: str
    runner: Runner
    tokenizer: Tokenizer


def load_model(config: EngineConfig) -> LoadedModel:
    """Load weights and tokenizer and allocate the cache; raises ModelLoadError or ConfigError."""
    device = config.torch_device()
    _bound_kernel_caches()
    _share_cores(config, device)
    dtype_name = resolve_dtype(config.dtype)
    stored = stored_dtype(dtype_name)
    dtype = getattr(torch, stored)
    directory = resolve_model(config.model, stored)
    model_config = read_config(directory)
    kernels = _kernels(config, dtype_name, dtype, device)
    tokenizer = Tokenizer.load(directory)
    kv_dtype = torch.float32 if device.type == "cpu" else dtype

    def capacity(shape: ModelConfig, free: int | None = None) -> int:
        slots = config.kv_cache_tokens or default_capacity(config, shape, kv_dtype, device, free)
        if slots < 2:
            raise ConfigError("not enough free memory for a KV cache; set kv_cache_tokens or use a smaller model")
        return slots

    if config.tensor_parallel > 1:
        threads = torch.get_num_threads() if device.type == "cpu" else None
        task = Assignment(Share(0, config.tensor_parallel), directory, model_config, stored, device, threads, kernels)
        return LoadedModel(directory, dtype_name, start_ranks(task, capacity), tokenizer)
    decoder = load_decoder(model_config, Weights.open(directory), dtype, device, kernels)
    shape = model_config.num_layers, capacity(model_config), model_config.num_kv_heads, model_config.head_dim
    return LoadedModel(directory, dtype_name, Runner(decoder, KVCache(*shape, kv_dtype, device), device), tokenizer)


def _kernels(config: EngineConfig, dtype_name: str, dtype: torch.dtype, device: torch.device) -> Kernels:
    """What the linears must be; ConfigError where that cannot be had."""
    ranks, int8 = config.tensor_parallel, dtype_name == "int8"
    if int8 and device.type != "cpu":
        raise ConfigError(f"dtype int8 is for CPUs, and this model is for {device}; choose bfloat16")
    if int8 and ranks > 1:  # a rank knows a part of an output's weights, and would give them another scale
        raise ConfigError(f"dtype int8 is for one process, and tensor_parallel is {ranks}; choose bfloat16")
    if config.numerics == "invariant" and ranks > 2:  # the order of a sum of three depends on its place
        raise ConfigError(f"numerics invariant is for one or two ranks, and tensor_parallel is {ranks}; choose fast")
    free = config.numerics == "auto" and ranks == 1 and ours_is_fastest(dtype, device)
    return Kernels(int8=int8, invariant=free or config.numerics == "invariant")


def _share_cores(config: EngineConfig, device: torch.device) -> None:
    """Ranks on a CPU have equal parts of what one process would have."""
    threads = config.threads or min(torch.get_num_threads(), available_cores())
    torch.set_num_threads(max(1, threads // (config.tensor_parallel if device.type == "cpu" else 1)))


def _bound_kernel_caches() -> None:
    """oneDNN keeps a compiled kernel for each number of rows, up to 1,024: hundreds of MB under a mixed load."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # its own, and that of torch's layer above
        os.environ.setdefault(name, str(KERNELS_KEPT))


def cache_share(config: EngineConfig, device: torch.device) -> float:
    """Of the free memory, the share that the cache may take."""
    return config.kv_cache_share or (GPU_CACHE_SHARE if device.type == "cuda" else CPU_CACHE_SHARE)


def default_capacity(
    config: EngineConfig, model: ModelConfig, kv_dtype: torch.dtype, device: torch.device, free: int | None = None
) -> int:
    """Tokens that a share of the memory that is free now holds, and no more than requests could ever use.

    free: its bytes, where they are known. On a CPU at most a few whole contexts: the memory is taken at once, and
    others want some too.
    """
    on_gpu = device.type == "cuda"
    free = free or (torch.cuda.mem_get_info(device)[0] if on_gpu else available_memory())
    token_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * kv_dtype.itemsize
    contexts = config.max_running if on_gpu else min(config.max_running, CPU_CACHE_CONTEXTS)
    return min(int(cache_share(config, device) * free / token_bytes), contexts * model.context_length)
