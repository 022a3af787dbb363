"""What tensor X is: names looked up in a checkpoint's files, mapped into memory and checked when asked for."""

import json
import math
import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from swift_backend.errors import ModelLoadError

Part = Callable[[torch.Tensor], torch.Tensor]
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class _File(Protocol):
    path: Path

    def names(self) -> Iterable[str]: ...

    def read(self, name: str) -> torch.Tensor: ...


class Tensors(Protocol):
    """What a decoder is built from: see Weights."""

    def has(self, name: str) -> bool: ...

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor: ...


class Weights:
    """The tensors of one checkpoint directory.

    Example:
        weights = Weights.open(directory)
        norm = weights.get("model.norm.weight", (576,))
    """

    def __init__(self, directory: Path, files: Mapping[str, _File]) -> None:
        """files: for each tensor's name the file that holds it; directory is for messages. Weights.open makes both."""
        self._directory = directory
        self._files = files

    @classmethod
    def open(cls, directory: Path) -> "Weights":
        """Opens `*.safetensors` (sharded or not), else `pytorch_model*.bin`; reads headers only.

        Raises ModelLoadError for a directory without weights, an index that is none, a missing, damaged or cut-off
        file, and a .bin file that holds something else than tensors by name.
        """
        for index_name, single, pattern, reader in _FORMATS:
            paths = _shards(directory, index_name, single, pattern)
            if paths:
                return cls(directory, {name: file for file in map(reader, paths) for name in file.names()})
        raise ModelLoadError(f"The model directory {directory} has no *.safetensors and no pytorch_model*.bin.")

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds the tensor `name`."""
        return name in self._files

    def get(self, name: str, shape: tuple[int, ...], part: Part = lambda tensor: tensor) -> torch.Tensor:
        """The tensor `name` in its stored floating dtype, on the CPU, mapped from the file: don't write into it.

        part: makes the part that is wanted of it; what nobody wants is not read.
        Raises ModelLoadError if it is missing, has another shape, is not a dense tensor of a floating dtype that we
        compute with, or holds NaN or infinity. That last check reads the tensor, so ask for each only once.
        """
        file = self._files.get(name)
        if file is None:
            raise ModelLoadError(f"Tensor {name} with shape {list(shape)} is not in the checkpoint {self._directory}.")
        tensor = file.read(name)
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"Tensor {name} in {file.path} must have shape {list(shape)}, found {list(tensor.shape)}."
            )
        if tensor.dtype not in _FLOATS:
            raise ModelLoadError(f"Tensor {name} in {file.path} must be of a 16 to 64 bit float, found {tensor.dtype}.")
        if tensor.layout != torch.strided:
            raise ModelLoadError(f"Tensor {name} in {file.path} must be dense, found {tensor.layout}.")
        tensor = part(tensor)
        if not all_finite(tensor):
            raise ModelLoadError(f"Tensor {name} in {file.path} holds NaN or infinity; the file is damaged.")
        return tensor


def all_finite(tensor: torch.Tensor) -> bool:
    """No NaN and no infinity; a NaN is also the smallest and largest number, and this is 50 times isfinite's speed."""
    return tensor.numel() == 0 or all(math.isfinite(bound.item()) for bound in tensor.aminmax())


class _SafetensorsFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle = safe_open(path, framework="pt", device="cpu")  # type: ignore[no-untyped-call]
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{path} is missing, damaged or cut off: {error}.") from error

    def names(self) -> Iterable[str]:
        return self._handle.keys()  # type: ignore[no-any-return]

    def read(self, name: str) -> torch.Tensor:
        return self._handle.get_tensor(name)  # type: ignore[no-any-return]


class _TorchFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ModelLoadError(f"{path} is missing, damaged, cut off or in a format of old: {reason}.") from error
        if not isinstance(self._tensors, dict):
            raise ModelLoadError(f"{path} must hold tensors by name, found a {type(self._tensors).__name__}.")
        for name, value in self._tensors.items():
            if not isinstance(value, torch.Tensor):
                raise ModelLoadError(f"{name} in {path} must be a tensor, found a {type(value).__name__}.")

    def names(self) -> Iterable[str]:
        return self._tensors.keys()  # type: ignore[no-any-return]

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name]  # type: ignore[no-any-return]


_FORMATS: tuple[tuple[str, str, str, Callable[[Path], _File]], ...] = (
    ("model.safetensors.index.json", "model.safetensors", "*.safetensors", _SafetensorsFile),
    ("pytorch_model.bin.index.json", "pytorch_model.bin", "pytorch_model*.bin", _TorchFile),
)


def _shards(directory: Path, index_name: str, single: str, pattern: str) -> list[Path]:
    """The files of one format: those in the index, else the single file, else all that match."""
    index = directory / index_name
    if index.is_file():
        try:
            names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            return [directory / name for name in sorted(set(names))]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelLoadError(f"{index} is not an index of weights: {error!r}.") from error
    if (directory / single).is_file():
        return [directory / single]
    return sorted(directory.glob(pattern))
