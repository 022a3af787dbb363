"""What does a request ask for? Parsed once at the border; a SamplingParams that exists is valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from swift_backend.errors import InvalidRequest
from swift_backend.request_keys import KEYS, known_key, parse_key, shown

# vLLM's clients, Triton's OpenAI frontend among them, ask for one answer in these words.
ONE_ANSWER = ("n", "best_of")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled; names and defaults are the contract's.

    Raises InvalidRequest, naming the field, when a value is out of its range in request_keys.KEYS. None is "not set";
    stop may be given as one string, logit_bias as a dict.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None
    logprobs: int | None = None
    speculation: str = "auto"
    max_draft_tokens: int | None = None
    confidence_threshold: float | None = None
    timeout_ms: int | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            object.__setattr__(self, one.name, one.default if value is None else parse_key(one.name, value))
        if self.min_tokens > self.max_tokens:
            allowed = f"[0, {self.max_tokens}], which is max_tokens"
            raise InvalidRequest("min_tokens", f"min_tokens must be in {allowed}, got {self.min_tokens}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Check a request's keys and values; InvalidRequest names the first that is wrong. None is "not set"."""
        given = {name: value for name, value in values.items() if value is not None}
        for name in ONE_ANSWER:
            if str(given.pop(name, 1)) != "1":
                raise InvalidRequest(name, f"{name} must be 1, got {shown(values[name])}")
        for name in given:
            known_key(name)
        return cls(**given)

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on the tokens so far."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


assert set(KEYS) == {f.name for f in fields(SamplingParams)}
