"""What did speculation do for a request, in one round and so far? Counts of committed tokens, and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RequestStats:
    """What speculation did for one request so far.

    Times are in seconds; draft_seconds and verify_seconds are its share of passes that several requests were in.
    reused_prompt_tokens: how much of the prompt was in the cache already. layer_set: the mask of the sublayers that its
    drafts leave out now, in hexadecimal, "" where there is none; draft_cost_ratio: c, a draft pass over a full one.
    tried_draft_tokens: those all before which, in their round, were accepted, and accepted_chain_tokens: those of them
    that were accepted, too; siblings are none of them.
    search_seconds: spent on other sets; decide_seconds: on what to draft. drafted, accepted: by drafter.
    rounds_without_draft: plain ones. draft_passes: what they say is verified where that is worth its row.
    provenance: at the end of the request, who proposed each of its output tokens: ngram, layer_skip, sibling, or
    verified for the full model's own.
    """

    rounds: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    output_tokens: int = 0
    time_to_first_token: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    skipped_layers: tuple[int, ...] = ()
    reused_prompt_tokens: int = 0
    layer_set: str = ""
    draft_cost_ratio: float = 0.0
    first_draft_tokens: int = 0
    accepted_first_draft_tokens: int = 0
    tried_draft_tokens: int = 0
    accepted_chain_tokens: int = 0
    search_seconds: float = 0.0
    decide_seconds: float = 0.0
    rounds_without_draft: int = 0
    draft_passes: int = 0
    drafted: Mapping[str, int] = field(default_factory=dict)
    accepted: Mapping[str, int] = field(default_factory=dict)
    provenance: tuple[str, ...] = ()

    @property
    def first_acceptance_rate(self) -> float:
        """α of the first draft tokens of rounds, 0 before there is one."""
        return self.accepted_first_draft_tokens / self.first_draft_tokens if self.first_draft_tokens else 0.0

    @property
    def later_acceptance_rate(self) -> float:
        """α of later draft tokens all before which were accepted, 0 before there is one."""
        tried = self.tried_draft_tokens - self.first_draft_tokens
        return (self.accepted_chain_tokens - self.accepted_first_draft_tokens) / tried if tried else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens, 0 before the first draft."""
        return self.accepted_draft_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Committed tokens per decode round; the token that prefill yields is not counted."""
        return max(self.output_tokens - 1, 0) / self.rounds if self.rounds else 0.0


VERIFIED = "verified"  # the origin of a token that nobody drafted


@dataclass(frozen=True, slots=True)
class Round:
    """What one decode round of a sequence came to; counts are of committed tokens.

    drafted: who proposed each drafted token; origins: who proposed each committed one, VERIFIED where nobody did.
    chain, accepted_chain: how many drafted tokens followed each other, and how many of those were accepted. Seconds
    are the sequence's share of the passes; decide_seconds: of deciding what to draft. passes: draft passes that it was
    in, whether what they said was worth verifying or not.
    """

    drafted: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    chain: int = 0
    accepted_chain: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    decide_seconds: float = 0.0
    passes: int = 0

    @property
    def plain(self) -> bool:
        """Nothing was drafted, and no draft pass made."""
        return not self.drafted and not self.passes

    @property
    def accepted(self) -> list[str]:
        """Who proposed each accepted token."""
        return [origin for origin in self.origins if origin != VERIFIED]
