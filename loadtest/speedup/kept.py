"""Where is a run kept while it goes on? In its JSON file: after each batch, with what it takes to go on later."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.speedup.prompts import Prompt
from loadtest.speedup.record import Record


class ResumeError(Exception):
    """The file is not of the same run; the message names what differs."""


def fingerprint(batches: Sequence[Sequence[Prompt]]) -> str:
    """The same for the same prompts in the same batches."""
    content = [[[one.segment, one.category, one.token_ids] for one in batch] for batch in batches]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def load(path: Path, settings: dict[str, Any]) -> list[Record]:
    """The records of complete batches in a file of a run with the same settings; none without a file.

    Raises ResumeError for other settings, or a file that is none of ours.
    """
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kept, records = content["settings"], [Record(**one) for one in content["records"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ResumeError(f"--resume {path}: not a file of this command ({error!r})") from None
    differing = sorted(name for name in {*settings, *kept} if settings.get(name) != kept.get(name))
    if differing:
        shown = "; ".join(f"{name} is {settings.get(name)!r}, was {kept.get(name)!r}" for name in differing)
        raise ResumeError(f"--resume {path}: {shown}")
    return records


def save(path: Path, report: dict[str, Any]) -> None:
    """Write the file at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(report, indent=2), encoding="utf-8")
    os.replace(new, path)
