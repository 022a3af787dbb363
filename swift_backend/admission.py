"""Can this request ever run on this engine? What only the server knows: vocabulary, context, cache, limits."""

from __future__ import annotations

from dataclasses import dataclass

from swift_backend.errors import InvalidRequest
from swift_backend.sequence import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model and the server allow; counts of tokens."""

    vocab_size: int
    context_length: int
    cache_capacity: int
    max_draft_tokens: int

    def output_limit(self, request: Request) -> int:
        """How many tokens the request may be answered with."""
        return min(request.params.max_tokens, self.context_length - len(request.prompt_ids))

    def check(self, request: Request) -> None:
        """InvalidRequest, naming field, value and range, where the request can never run."""
        self._check_prompt(request.prompt_ids)
        params = request.params
        for name, ids in (
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", [token for token, _ in params.logit_bias]),
        ):
            self._check_ids(name, ids)
        needed = len(request.prompt_ids) + self.output_limit(request)
        if needed > self.cache_capacity:
            held = f"prompt and max_tokens need {needed} cache slots, the server has {self.cache_capacity}"
            raise InvalidRequest("max_tokens", f"max_tokens is too large: {held}")
        asked = params.max_draft_tokens
        if asked is not None and asked > self.max_draft_tokens:
            message = f"max_draft_tokens must be in [0, {self.max_draft_tokens}], got {asked}"
            raise InvalidRequest("max_draft_tokens", message)

    def _check_prompt(self, prompt: list[int]) -> None:
        if not prompt:
            raise InvalidRequest("input_ids", "input_ids must hold at least one token")
        self._check_ids("input_ids", prompt)
        if len(prompt) >= self.context_length:
            limit = self.context_length - 1
            raise InvalidRequest("input_ids", f"input_ids must hold at most {limit} tokens, got {len(prompt)}")

    def _check_ids(self, name: str, ids: list[int] | tuple[int, ...]) -> None:
        wrong = next((token for token in ids if not 0 <= token < self.vocab_size), None)
        if wrong is not None:
            message = f"{name} must be in [0, {self.vocab_size - 1}], got {wrong}"
            raise InvalidRequest(name, message)
