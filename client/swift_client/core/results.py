"""What does a caller get?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled", "timeout"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts, as the server made them.

    >>> Usage(prompt_tokens=5, completion_tokens=7).total_tokens
    12
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What was drafted for a request, and how much of it the full model confirmed.

    >>> SpeculationStats(draft_tokens=8, accepted_draft_tokens=6).acceptance_rate
    0.75
    """

    draft_tokens: int = 0
    accepted_draft_tokens: int = 0

    @property
    def acceptance_rate(self) -> float:
        """0 before the first draft."""
        return self.accepted_draft_tokens / self.draft_tokens if self.draft_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, on the client's clock, from the call to its first and to its latest chunk.

    >>> Timing(first_token_seconds=0.5, seconds=2.5, tokens=5).tokens_per_second
    2.0
    """

    first_token_seconds: float = 0.0
    seconds: float = 0.0
    tokens: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Over all that took; 0 while there is none."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that might have stood in a place, and its log-probability there.

    >>> Alternative(token_id=7, logprob=-0.5, token=" swift").token
    ' swift'
    """

    token_id: int
    logprob: float
    token: str


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of a token that came, and the likeliest ones of its place.

    >>> TokenLogprob(7, -0.5, " swift", top=(Alternative(7, -0.5, " swift"),)).top[0].logprob
    -0.5
    """

    token_id: int
    logprob: float
    token: str
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is new in one response; finish_reason is None until the last.

    accepted_draft_tokens: how many of its tokens had been drafted; which ones, the server does not tell. speculation
    counts from the request's beginning.

    >>> Chunk(text=" swift", token_ids=(7,)).finish_reason is None
    True
    """

    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    accepted_draft_tokens: int = 0
    usage: Usage = Usage()
    speculation: SpeculationStats = SpeculationStats()
    logprobs: tuple[TokenLogprob, ...] = ()
    cumulative_logprob: float = 0.0


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer.

    >>> from swift_client import FakeTransport, SwiftClient
    >>> with SwiftClient(transport=FakeTransport(["Hello", " there"])) as client:
    ...     completion = client.generate("Hi", request_id="r-1")
    >>> completion.text, completion.finish_reason, completion.usage.completion_tokens, completion.request_id
    ('Hello there', 'stop', 2, 'r-1')
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    speculation: SpeculationStats
    timing: Timing
    request_id: str
    logprobs: tuple[TokenLogprob, ...] = ()
    cumulative_logprob: float = 0.0


def joined(parts: Sequence[str]) -> str:
    """Deltas as the text that they are deltas of."""
    return "".join(parts)
