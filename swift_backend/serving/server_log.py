"""What does Triton's log say, while it grows and when the server has failed?"""

from __future__ import annotations

import re
from pathlib import Path

_ERROR_LINE = re.compile(r"E\d{4} |error: |\s*what\(\): ")
# A machine without a GPU or its monitoring gets these on every start.
_HARMLESS = ("CudaDriverHelper", "NVML", "DCGM", "CUDA driver version")
_LOGS_KEPT = 20


def failure_lines(text: str, limit: int = 12) -> list[str]:
    """The last error lines of a log, else simply its last lines."""
    lines = text.splitlines()
    errors = [line for line in lines if _ERROR_LINE.match(line) and not any(word in line for word in _HARMLESS)]
    # Triton writes a Python traceback in one line, with its line breaks spelt out.
    spelt_out = [
        part for line in errors or lines for part in line.replace("\\n", "\n").splitlines() if part.strip(' "')
    ]
    return spelt_out[-limit:]


def forget_old_logs(folder: Path) -> None:
    """Deletes all but the newest logs."""
    newest_first = sorted(folder.glob("*.log"), key=lambda path: path.name, reverse=True)
    for path in newest_first[_LOGS_KEPT:]:
        path.unlink(missing_ok=True)


class LogTail:
    """Reads what was added to a growing file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new_text(self) -> str:
        """Whatever was added; "" if nothing, or if there is no file yet."""
        if not self._path.is_file():
            return ""
        with self._path.open("rb") as log:
            log.seek(self._read)
            added = log.read()
        self._read += len(added)
        return added.decode(errors="replace")
