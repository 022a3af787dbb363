"""What did an earlier process leave for this one? Small JSON documents beside the weight cache, replaced as a whole."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

READABLE_BY_ALL = 0o644

_log = logging.getLogger(__name__)


def read_json(path: Path, version: int) -> Any | None:
    """What write_json left; None where there is nothing and, with a warning, if it is damaged or of another version."""
    try:
        return _content(path.read_bytes(), version)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("%s is not used: %s", path, error)
        return None


def write_json(path: Path, version: int, content: Any) -> bool:
    """Put a document in the place of what is there, and tell whether it could be done; if not, there is a warning.

    Whoever reads sees the old document or the new one, also where several processes write or one is killed. Raises
    ValueError for NaN and infinities, which JSON does not know.
    """
    text = json.dumps({"version": version, "content": content}, allow_nan=False)
    try:
        _replace(path, text)
    except OSError as error:
        _log.warning("%s cannot be written: %s", path, error)
        return False
    return True


def _content(data: bytes, version: int) -> Any:
    document = json.loads(data, parse_constant=_refuse)
    if not isinstance(document, dict) or "version" not in document:
        raise ValueError("it does not say its version")
    if document["version"] != version:
        raise ValueError(f"it is not of version {version}")
    if document.get("content") is None:
        raise ValueError("it has no content")
    return document["content"]


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fchmod(handle, READABLE_BY_ALL)
            os.fsync(handle)
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise
