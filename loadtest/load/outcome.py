"""What did a user see of one request? Raw times, so that nothing is rounded before it is counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

# The error of a request that was running when the test was ended.
WITHDRAWN = "withdrawn: the test was ended"


@dataclass(slots=True)
class Outcome:
    """Seconds; started on the wall clock, everything else since then.

    arrivals: when each chunk came, and how many tokens it had. error: "" where the answer is whole.
    """

    user: int
    started: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    total: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    finish_reason: str = ""
    error: str = ""
    request_id: str = ""

    @property
    def first_token(self) -> float | None:
        """Until the first chunk that has a token."""
        return next((at for at, tokens in self.arrivals if tokens), None)

    @property
    def gaps(self) -> list[tuple[float, int]]:
        """Between chunks that have tokens: seconds, and the tokens of the later one."""
        some = [(at, tokens) for at, tokens in self.arrivals if tokens]
        return [(later - earlier, tokens) for (earlier, _), (later, tokens) in pairwise(some)]

    def line(self) -> str:
        """For the file."""
        return json.dumps(asdict(self)) + "\n"


def read_outcomes(path: Path) -> Iterator[Outcome]:
    """Those of a file, as far as it is written: a process that was killed may have left half a line."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            content = json.loads(line)
        except ValueError:
            continue
        content["arrivals"] = [(at, tokens) for at, tokens in content["arrivals"]]
        yield Outcome(**content)
