"""The SHA-256 of a file, remembered as long as the file does not change."""

import hashlib
import json
import os
from pathlib import Path

BLOCK_BYTES = 1 << 20


def sha256_of(path: Path) -> str:
    """Hex digest of the file's content. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


class HashMemo:
    """Digests by (path, size, mtime), kept in one small JSON file; a lost or damaged memo only costs a re-hash."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def digest(self, path: Path) -> str:
        """The digest of `path`, from the memo if size and mtime are unchanged. Raises OSError."""
        stat = path.stat()
        known = self._read().get(str(path))
        if isinstance(known, dict) and (known.get("size"), known.get("mtime_ns")) == (stat.st_size, stat.st_mtime_ns):
            return str(known.get("sha256"))
        return sha256_of(path)

    def remember(self, path: Path, digest: str) -> None:
        """Writes the digest down; a read-only cache is no reason to fail."""
        stat = path.stat()
        entry = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": digest}
        known = self._read()
        if known.get(str(path)) == entry:
            return
        try:
            self._write({**known, str(path): entry})
        except OSError:
            return

    def _read(self) -> dict[str, object]:
        try:
            known = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def _write(self, known: dict[str, object]) -> None:
        scratch = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        scratch.write_text(json.dumps(known, indent=1), encoding="utf-8")
        os.replace(scratch, self._file)
