"""What is known about one request while it runs? Its tokens, its cache extent, its draft statistics.

Vocabulary, used everywhere in code and metrics:
drafted    proposed by a drafter        verified   scored by the full model
accepted   drafted and kept             recovered  the full model's token in place of a rejected one
bonus      the full model's token after a draft that was accepted whole
committed  part of the answer for good  emitted    sent to the client
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from swift_backend.errors import SwiftError
from swift_backend.params import SamplingParams
from swift_backend.request_stats import RequestStats, Round

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Extent:
    """The cache slots [start, start + size) of one sequence; the first `length` hold committed tokens.

    kept: its sequence has ended, and what it holds may serve others until the room is needed.
    """

    start: int
    size: int
    length: int = 0
    kept: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The full model's own opinion of a token: log softmax of its logits, before penalties, bias and temperature.

    top: the likeliest (token id, logprob), best first, as many as the request's `logprobs`.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """One step's news about a request: a delta, and at the end why it ended.

    finish_reason: "" until the last output, then stop, length, cancelled or timeout, or error with `error` set.
    logprobs: one for each of token_ids where the request asks for them, else empty. cumulative_logprob: their sum
    over the whole answer so far.
    """

    request_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    cumulative_logprob: float = 0.0
    finish_reason: str = ""
    num_prompt_tokens: int = 0
    stats: RequestStats = field(default_factory=RequestStats)
    error: SwiftError | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason != ""


@dataclass(frozen=True, slots=True)
class Request:
    """A valid request on its way to the engine; `on_output` is called on the engine thread and must not block.

    bad_word_ids: the id sequences of params.bad_words; the engine fills them in. label: what the client calls it.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    on_output: Callable[[Output], None]
    arrived: float = field(default_factory=monotonic)
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    label: str = ""


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one admitted or waiting request.

    tokens are the prompt and all committed output. The cache holds tokens[:kv_len]; after every round of a
    decoding sequence kv_len == len(tokens) - 1, since the last token has not been through the model.
    """

    request: Request
    max_tokens: int
    seed: int
    text: Any = None  # text.stream.TextStream: turns committed ids into emitted text
    processors: Any = None  # processors.Processors, for requests that change their logits
    tokens: list[int] = field(default_factory=list)
    extent: Extent | None = None
    layer_set: Any = None  # speculation.layer_set.LayerSet, chosen at the end of prefill
    drafting_failed: bool = False
    drafting: Any = None  # speculation.drafting_state.DraftingState, for requests whose drafts a policy decides
    text_index: Any = None  # speculation.suffix_automaton.SuffixAutomaton of the tokens, where they are looked up
    lookahead: Any = None  # speculation.lookahead.Window, for requests that have one
    profile: torch.Tensor | None = None  # speculation.similarity.Profile of profile_tokens of the prompt
    profile_tokens: int = 0
    recent_profile: torch.Tensor | None = None  # the same of the latest tokens, where they were looked at
    reused_tokens: int = 0  # of the prompt, from the cache
    paused: bool = False  # its reader lags behind
    cumulative_logprob: float = 0.0
    finish_reason: str = ""
    rounds: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    first_token_at: float | None = None
    last_token_at: float | None = None
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    first_draft_tokens: int = 0
    accepted_first_draft_tokens: int = 0
    tried_draft_tokens: int = 0
    accepted_chain_tokens: int = 0
    draft_cost_ratio: float = 0.0
    mixed_sets: bool = False  # drafts were made with other sets than its own, too
    guesses: int = 0  # of draft passes, which the full model could be asked about
    right_guesses: int = 0
    search_seconds: float = 0.0
    decide_seconds: float = 0.0
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    rounds_without_draft: int = 0
    draft_passes: int = 0
    origins: list[str] = field(default_factory=list)

    deadline: float = math.inf  # on the monotonic clock

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)
        if self.params.timeout_ms is not None:
            self.deadline = self.request.arrived + self.params.timeout_ms / 1000

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        return self.max_tokens - self.num_output_tokens

    @property
    def kv_len(self) -> int:
        return self.extent.length if self.extent else 0

    @property
    def prefilling(self) -> bool:
        """More than the last token still has to go through the model."""
        return self.kv_len < len(self.tokens) - 1 or self.num_output_tokens == 0

    @property
    def may_draft(self) -> bool:
        """Whether the next decode round begins with a draft."""
        return self.params.speculation != "off" and not self.drafting_failed

    @property
    def finished(self) -> bool:
        return self.finish_reason != ""

    def begin_with(self, num_tokens: int, profile: torch.Tensor | None) -> None:
        """Note that the cache held the first num_tokens of the prompt, and their profile where it is known."""
        self.reused_tokens = num_tokens
        if profile is not None:
            self.note_profile(profile, num_tokens)

    def note_profile(self, profile: torch.Tensor, num_tokens: int) -> None:
        """Add the profile, float32 [3 * layers], of another num_tokens of the prompt."""
        self.profile_tokens += num_tokens
        share = num_tokens / self.profile_tokens
        self.profile = profile if self.profile is None else self.profile + share * (profile - self.profile)

    def append(self, token_id: int) -> None:
        """Commit a token."""
        self.tokens.append(token_id)
        if self.processors is not None:
            self.processors.append(token_id)

    def note_round(self, one: Round) -> None:
        """Count a decode round."""
        accepted = one.accepted
        self.rounds += 1
        self.draft_tokens += len(one.drafted)
        self.accepted_draft_tokens += len(accepted)
        self.drafted.update(one.drafted)
        self.accepted.update(accepted)
        self.rounds_without_draft += one.plain
        self.draft_passes += one.passes
        self.first_draft_tokens += one.chain > 0
        self.accepted_first_draft_tokens += one.accepted_chain > 0
        self.tried_draft_tokens += min(one.accepted_chain + 1, one.chain)
        self.accepted_chain_tokens += one.accepted_chain
        self.draft_seconds += one.draft_seconds
        self.verify_seconds += one.verify_seconds
        self.decide_seconds += one.decide_seconds

    def note_tokens(self, origins: Iterable[str], logprobs: tuple[TokenLogprob, ...], now: float) -> None:
        """Remember who proposed the newest tokens, when the first and the last came, and how likely all were."""
        self.origins.extend(origins)
        self.first_token_at = self.first_token_at or now
        self.last_token_at = now
        self.cumulative_logprob += sum(one.logprob for one in logprobs)

    def news(
        self, text: str, num_tokens: int, logprobs: tuple[TokenLogprob, ...] = (), error: SwiftError | None = None
    ) -> Output:
        """The output for a text and the newest num_tokens tokens."""
        return Output(
            request_id=self.request.request_id,
            text=text,
            token_ids=tuple(self.tokens[len(self.tokens) - num_tokens :]),
            logprobs=logprobs,
            cumulative_logprob=self.cumulative_logprob,
            finish_reason=self.finish_reason,
            num_prompt_tokens=self.num_prompt_tokens,
            stats=self.stats(),
            error=error,
        )

    def stats(self) -> RequestStats:
        """A snapshot for the client."""
        first, last = self.first_token_at, self.last_token_at
        return RequestStats(
            rounds=self.rounds,
            draft_tokens=self.draft_tokens,
            accepted_draft_tokens=self.accepted_draft_tokens,
            output_tokens=self.num_output_tokens,
            time_to_first_token=first - self.request.arrived if first else 0.0,
            decode_seconds=last - first if first and last else 0.0,
            draft_seconds=self.draft_seconds,
            verify_seconds=self.verify_seconds,
            skipped_layers=self.layer_set.skipped_layers if self.layer_set is not None else (),
            reused_prompt_tokens=self.reused_tokens,
            layer_set=hex(self.layer_set.skip_mask) if self.layer_set is not None else "",
            draft_cost_ratio=self.draft_cost_ratio,
            first_draft_tokens=self.first_draft_tokens,
            accepted_first_draft_tokens=self.accepted_first_draft_tokens,
            tried_draft_tokens=self.tried_draft_tokens,
            accepted_chain_tokens=self.accepted_chain_tokens,
            search_seconds=self.search_seconds,
            decide_seconds=self.decide_seconds,
            rounds_without_draft=self.rounds_without_draft,
            draft_passes=self.draft_passes,
            drafted=dict(self.drafted),
            accepted=dict(self.accepted),
            provenance=tuple(self.origins) if self.finished else (),
        )
