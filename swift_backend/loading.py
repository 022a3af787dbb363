"""How does a configuration become a model in memory? Weights, cache, threads and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from swift_backend.config import EngineConfig, resolve_dtype
from swift_backend.errors import ConfigError
from swift_backend.kv_cache import KVCache
from swift_backend.model.checkpoint import resolve_model
from swift_backend.model.config import ModelConfig, read_config
from swift_backend.model.decoder import load_decoder
from swift_backend.model.weights import Weights
from swift_backend.runner import Runner
from swift_backend.text.tokenizer import Tokenizer

CACHE_SHARE = 0.25
CACHE_CONTEXTS = 8


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
    dtype_name = resolve_dtype(config.dtype)
    dtype = getattr(torch, dtype_name)
    directory = resolve_model(config.model, dtype_name)
    model_config = read_config(directory)
    decoder = load_decoder(model_config, Weights.open(directory), dtype, device)
    kv_dtype = torch.float32 if device.type == "cpu" else dtype
    capacity = config.kv_cache_tokens or default_capacity(model_config, kv_dtype, device)
    if capacity < 2:
        raise ConfigError("not enough free memory for a KV cache; set kv_cache_tokens or use a smaller model")
    cache = KVCache(
        model_config.num_layers, capacity, model_config.num_kv_heads, model_config.head_dim, kv_dtype, device
    )
    return LoadedModel(directory, dtype_name, Runner(decoder, cache, device), Tokenizer.load(directory))


def default_capacity(config: ModelConfig, kv_dtype: torch.dtype, device: torch.device) -> int:
    """Tokens that a share of the free memory holds, at most a few times the context length."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * kv_dtype.itemsize
    return min(int(CACHE_SHARE * free / token_bytes), CACHE_CONTEXTS * config.context_length)
