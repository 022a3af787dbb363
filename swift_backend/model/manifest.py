"""Whether a converted model is whole: the list of its files with their sizes and digests."""

import json
import os
from pathlib import Path

from swift_backend.model.file_hash import sha256_of

MANIFEST = "manifest.json"
# Raise it when the converter writes something else for the same GGUF file; older conversions are then redone.
FORMAT = 1


def write_manifest(directory: Path, source_sha256: str) -> None:
    """Writes the manifest of every file in `directory` and flushes all of it to disk. Raises OSError."""
    files = {
        file.name: {"size": file.stat().st_size, "sha256": sha256_of(file)}
        for file in sorted(directory.iterdir())
        if file.name != MANIFEST
    }
    text = json.dumps({"format": FORMAT, "source_sha256": source_sha256, "files": files}, indent=1)
    (directory / MANIFEST).write_text(text, encoding="utf-8")
    for path in (*directory.iterdir(), directory):
        _flush(path)


def damage(directory: Path, source_sha256: str) -> str | None:
    """What is wrong with the converted model, or None if every byte is as written. Reads all of it."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return "it was written by another version"
        if manifest["source_sha256"] != source_sha256:
            return "it belongs to another file"
        for name, expected in manifest["files"].items():
            if reason := _file_damage(directory / name, expected["size"], expected["sha256"]):
                return reason
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__} while reading it: {error}"
    return None


def _file_damage(file: Path, size: int, sha256: str) -> str | None:
    if not file.is_file():
        return f"{file.name} is missing"
    if (found := file.stat().st_size) != size:
        return f"{file.name} has {found} bytes instead of {size}"
    return None if sha256_of(file) == sha256 else f"{file.name} has other content than was written"


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
