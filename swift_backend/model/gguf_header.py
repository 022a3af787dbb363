"""What a GGUF file says it is, read without its tensor data, and whether the file is whole."""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swift_backend.errors import ModelLoadError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The metadata under GGUF's own names (numbers, strings, bools, lists of them) and the names of the tensors."""

    metadata: Mapping[str, object]
    tensor_names: frozenset[str]

    @property
    def architecture(self) -> str:
        """GGUF's name of the architecture, such as "llama"."""
        return str(self.metadata.get("general.architecture", ""))

    def of_architecture(self, key: str) -> object:
        """The value of `<architecture>.<key>`, or None."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_gguf_header(path: Path) -> GgufHeader:
    """Header of a whole, single-file GGUF. Raises ModelLoadError for anything else, and OSError."""
    if path.stat().st_size < 24:
        raise ModelLoadError(f"{path.name} is not a GGUF file: it has only {path.stat().st_size} bytes.")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != _MAGIC:
            raise ModelLoadError(f"{path.name} is not a GGUF file: it starts with {data[:4]!r}.")
        try:
            header, needed_bytes = _parse(_Cursor(data))
        except (struct.error, ValueError, OverflowError, MemoryError) as error:
            raise ModelLoadError(f"{path.name} is damaged or cut off: its header cannot be read ({error}).") from error
        if len(data) < needed_bytes:
            raise ModelLoadError(f"{path.name} is cut off: it has {len(data)} bytes, its header says {needed_bytes}.")
    if not header.architecture:
        raise ModelLoadError(f"{path.name} names no architecture (general.architecture).")
    if header.metadata.get("split.count", 0) not in (0, 1):
        raise ModelLoadError(f"{path.name} is one part of a split GGUF: merge the parts first.")
    return header


class _Cursor:
    """Reads little-endian values one after another; past the end it raises struct.error or ValueError."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = len(_MAGIC)

    def scalar(self, code: str) -> int | float | bool:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.position)
        self.position += struct.calcsize(f"<{code}")
        return value  # type: ignore[no-any-return]

    def count(self) -> int:
        """An unsigned 64-bit number of things of at least one byte each."""
        value = int(self.scalar("Q"))
        if value > len(self.data) - self.position:
            raise ValueError(f"{value} items announced, {len(self.data) - self.position} bytes left")
        return value

    def text(self) -> str:
        start = self.position + 8
        self.position = start + self.count()
        return self.data[start : self.position].decode("utf-8", errors="replace")

    def value(self, kind: int) -> object:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.scalar(_code(kind))
        kind, length = int(self.scalar("I")), self.count()
        if kind in (_STRING, _ARRAY):
            return [self.value(kind) for _ in range(length)]
        values = struct.unpack_from(f"<{length}{_code(kind)}", self.data, self.position)
        self.position += struct.calcsize(f"<{length}{_code(kind)}")
        return list(values)


def _code(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"unknown value type {kind}")
    return _SCALARS[kind]


def _parse(cursor: _Cursor) -> tuple[GgufHeader, int]:
    """The header and the number of bytes that the whole file must have."""
    version = int(cursor.scalar("I"))
    if version not in _VERSIONS:
        raise ValueError(f"GGUF version {version}, not one of {_VERSIONS}")
    num_tensors, num_pairs = cursor.count(), cursor.count()
    metadata: dict[str, object] = {}
    for _ in range(num_pairs):
        key = cursor.text()
        metadata[key] = cursor.value(int(cursor.scalar("I")))
    tensors = [_tensor(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"alignment {alignment!r}")
    data_start = -(-cursor.position // alignment) * alignment
    header = GgufHeader(metadata, frozenset(name for name, _ in tensors))
    return header, data_start + max((end for _, end in tensors), default=0)


def _tensor(cursor: _Cursor) -> tuple[str, int]:
    """A tensor's name and where it ends, counted from the start of the data."""
    import gguf

    name, num_dimensions = cursor.text(), int(cursor.scalar("I"))
    if num_dimensions > _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name} has {num_dimensions} dimensions")
    num_values = 1
    for _ in range(num_dimensions):
        num_values *= int(cursor.scalar("Q"))
    kind, offset = int(cursor.scalar("I")), int(cursor.scalar("Q"))
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    return name, offset + num_values // block_values * block_bytes
