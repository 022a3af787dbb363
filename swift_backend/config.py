"""How is the engine set up? Options from the environment, config.pbtxt or a caller, checked once.

This is the only module that reads the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from swift_backend.errors import ConfigError

if TYPE_CHECKING:
    import torch

DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")
NUMERICS = ("auto", "fast", "invariant")
ACCEPTANCE_RULES = ("coupled", "rejection")
ENVIRONMENT_PREFIX = "SWIFT_"
TYPE_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "None"}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that is decided before the first request; raises ConfigError naming the option.

    model: directory, hub id or .gguf file; None is the default model.
    dtype: auto, float32, bfloat16, float16 or, on CPUs, int8 of the weights; auto is bfloat16. int8 rounds the weights
        of a bfloat16 model: half the memory to read, and another model, whose answers are its own.
    numerics: invariant gives each token the same bits whatever else is in the pass, so that bfloat16 and int8 answers
        too are the same with drafts, without, and in any batch; fast does not promise that. auto is invariant where
        that costs nothing, on CPUs with AVX2 and nothing wider, and fast elsewhere.
    device: auto (cuda if there is one), cpu or cuda[:n]; whether this machine has it is torch_device's question.
    kv_cache_tokens: slots of the KV cache, of each instance; None sizes it from free memory.
    kv_cache_share: of the free memory that the caches on one device may take where kv_cache_tokens is None; None is
        0.25 on a CPU and 0.8 on a GPU.
    prefix_cache: keep what requests leave in the cache, for prompts that begin alike.
    max_running: sequences that decode together.
    max_step_tokens: rows of one full pass; longer prompts are prefilled in chunks of it.
    max_waiting: requests that may wait for room before new ones are refused.
    timeout_ms: deadline of requests that bring none; None is no deadline.
    threads: CPU threads that compute; None shares this process's cores among the instances of the model.
    tensor_parallel: devices, or on a CPU processes, that share the model's weights; each of its layers is split.
    max_draft_tokens: upper bound of drafted tokens in a round, for every request; γ where a request says nothing and
        no controller decides is 5, the guide's.
    limit_drafts: while several requests run, draft only as far as that brings more tokens per second, by the measured
        costs of passes; false is for experiments. auto, skip and ngram always do.
    siblings: where a drafted token of auto or skip is unsure, alternatives are verified beside it if that pays; false
        is for experiments.
    draft_vocabulary: how many tokens the draft passes of auto and skip score, the likeliest ones by the traffic so far;
        0 for all. It takes a copy of as many rows of the head. None is an eighth of the vocabulary, or 16384.
    ngram_store_tokens: how many tokens of finished requests are kept to find drafts in, beside a request's own text.
        One user's text can then show in another's timing: only where all users may know each other's texts.
    layer_sets: file with layer sets, made by swift_backend.optimize; speculation "static" needs one.
    search_share: of the time that decoding takes, the share for trying other layer sets.
    skip_ratio: share of layers skipped while drafting; None follows the guide's rule by depth.
    protected_layers: layers at each end that are never skipped.
    acceptance: coupled (one noise per position) or rejection (min(1, p/q)). With coupled, a seed gives the same tokens
        with and without drafts; with rejection it gives the same distribution, but not the same tokens.
    debug: check the invariants after every step.
    metrics: publish figures in Triton's /metrics.
    exit_on_failure: end the server when the engine has failed or its process has died, so that it is started anew.
    """

    model: str | None = None
    dtype: str = "auto"
    numerics: str = "auto"
    device: str = "auto"
    kv_cache_tokens: int | None = None
    kv_cache_share: float | None = None
    prefix_cache: bool = True
    max_running: int = 32
    max_step_tokens: int = 512
    max_waiting: int = 256
    timeout_ms: int | None = None
    threads: int | None = None
    tensor_parallel: int = 1
    max_draft_tokens: int = 15
    limit_drafts: bool = True
    siblings: bool = True
    draft_vocabulary: int | None = None
    ngram_store_tokens: int = 0
    layer_sets: str | None = None
    search_share: float = 0.02
    skip_ratio: float | None = None
    protected_layers: int = 2
    acceptance: str = "coupled"
    debug: bool = False
    metrics: bool = True
    exit_on_failure: bool = True

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            _of_type(name, getattr(self, name), hint)
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,4})?", self.device):
            raise ConfigError(f"device must be auto, cpu or cuda[:n], got {self.device!r}")
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("numerics", self.numerics, NUMERICS)
        _one_of("acceptance", self.acceptance, ACCEPTANCE_RULES)
        for name in ("max_running", "max_waiting", "tensor_parallel"):
            _at_least(name, getattr(self, name), 1)
        _at_least("max_step_tokens", self.max_step_tokens, 2)  # a running stream's token, and one of a prompt
        for name in ("max_draft_tokens", "protected_layers", "ngram_store_tokens"):
            _at_least(name, getattr(self, name), 0)
        for name, low in (("kv_cache_tokens", 2), ("timeout_ms", 1), ("threads", 1), ("draft_vocabulary", 0)):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), low)
        if self.kv_cache_share is not None and not 0 < self.kv_cache_share <= 1:
            raise ConfigError(f"kv_cache_share must be in (0, 1], got {self.kv_cache_share}")
        if not 0 <= self.search_share <= 0.5:
            raise ConfigError(f"search_share must be in [0, 0.5], got {self.search_share}")
        if self.skip_ratio is not None and not 0 <= self.skip_ratio < 1:
            raise ConfigError(f"skip_ratio must be in [0, 1), got {self.skip_ratio}")

    @classmethod
    def from_sources(cls, parameters: Mapping[str, str], environment: Mapping[str, str] | None = None) -> EngineConfig:
        """Environment (SWIFT_<OPTION>) before config.pbtxt parameters before defaults.

        An empty string means "not set". An unknown parameter, or an unparsable value, is a ConfigError.
        """
        environment = os.environ if environment is None else environment
        _check_known(cls, parameters)
        known = [f.name for f in fields(cls)]
        texts = {name: environment.get(ENVIRONMENT_PREFIX + name.upper(), "") for name in known}
        texts = {name: text or parameters.get(name, "") for name, text in texts.items()}
        hints = get_type_hints(cls)
        return cls(**{name: _parse(name, text, hints[name]) for name, text in texts.items() if text})

    @classmethod
    def from_options(cls, **options: Any) -> EngineConfig:
        """Like the constructor, but an unknown option is a ConfigError too, not a TypeError."""
        _check_known(cls, options)
        return cls(**options)

    def torch_device(self) -> torch.device:
        """The device that `device` stands for on this machine; ConfigError when it has none such."""
        import torch  # here, since the tokenizer step reads its configuration without it

        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device == "cpu":
            return torch.device("cpu")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise ConfigError(f"device is {self.device!r}, but this machine has no CUDA device")
        number = self.device.partition(":")[2]
        if number and int(number) >= count:
            raise ConfigError(f"device is {self.device!r}, but this machine's CUDA devices are 0 to {count - 1}")
        return torch.device("cuda", int(number)) if number else torch.device("cuda")


def default_cache_dir(environment: Mapping[str, str] | None = None) -> Path:
    """$SWIFT_CACHE_DIR, else $XDG_CACHE_HOME/swift-triton, else ~/.cache/swift-triton; nothing is created."""
    environment = os.environ if environment is None else environment
    if chosen := environment.get("SWIFT_CACHE_DIR"):
        return Path(chosen).expanduser()
    if xdg := environment.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "swift-triton"
    return Path.home() / ".cache" / "swift-triton"


def resolve_dtype(dtype: str) -> str:
    """The name of the weights' dtype: auto is bfloat16 (CPUs without it keep its values in half precision).

    Raises ConfigError for a name that is not in DTYPES.
    """
    _one_of("dtype", dtype, DTYPES)
    return "bfloat16" if dtype == "auto" else dtype


def stored_dtype(dtype: str) -> str:
    """The dtype in which a checkpoint is read and kept for a resolved dtype: int8 is made of bfloat16."""
    return "bfloat16" if dtype == "int8" else dtype


def _check_known(cls: type[EngineConfig], names: Iterable[str]) -> None:
    known = {f.name for f in fields(cls)}
    unknown = sorted(set(names) - known)
    if unknown:
        raise ConfigError(f"unknown engine option {unknown[0]!r}; known are {', '.join(sorted(known))}")


def _of_type(name: str, value: object, hint: Any) -> None:
    """A value of the option's type; True is no number, and a whole number is a float."""
    allowed = get_args(hint) or (hint,)
    if type(value) in allowed or (float in allowed and type(value) is int):
        return
    expected = " or ".join(TYPE_NAMES[one] for one in allowed)
    raise ConfigError(f"{name} must be {expected}, got {value!r}")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise ConfigError(f"{name} must be >= {low}, got {value}")


def _parse(name: str, text: str, hint: Any) -> Any:
    try:
        if hint is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if hint in (int, int | None):
            return int(text)
        if hint in (float, float | None):
            return float(text)
    except (KeyError, ValueError):
        raise ConfigError(f"{name} cannot be read from {text!r}") from None
    return text
