"""Can this request ever run on this engine? What only the server knows: vocabulary, context, cache, limits."""

from __future__ import annotations

from dataclasses import dataclass

from swift_backend.errors import InvalidRequest
from swift_backend.sequence import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model and the server allow; counts of tokens. static_sets: whether layer sets were shipped."""

    vocab_size: int
    context_length: int
    cache_capacity: int
    max_draft_tokens: int
    static_sets: bool = True

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
        room = self.cache_capacity - len(request.prompt_ids)
        if self.output_limit(request) > room:
            held = f"the server's cache holds {self.cache_capacity} tokens, {len(request.prompt_ids)} are the prompt's"
            raise InvalidRequest("max_tokens", f"max_tokens must be in [1, {room}], got {params.max_tokens}: {held}")
        if params.speculation == "static" and not self.static_sets:
            raise InvalidRequest("speculation", "speculation must not be 'static': the server has no layer_sets file")
        asked = params.max_draft_tokens
        if asked is not None and asked > self.max_draft_tokens:
            message = f"max_draft_tokens must be in [0, {self.max_draft_tokens}], got {asked}"
            raise InvalidRequest("max_draft_tokens", message)

    def _check_prompt(self, prompt: list[int]) -> None:
        if not prompt:
            raise InvalidRequest("input_ids", "input_ids must hold at least one token")
        self._check_ids("input_ids", prompt)
        limit = min(self.context_length, self.cache_capacity) - 1
        if len(prompt) > limit:
            raise InvalidRequest("input_ids", f"input_ids must hold at most {limit} tokens, got {len(prompt)}")

    def _check_ids(self, name: str, ids: list[int] | tuple[int, ...]) -> None:
        wrong = next((token for token in ids if not 0 <= token < self.vocab_size), None)
        if wrong is not None:
            message = f"{name} must be in [0, {self.vocab_size - 1}], got {wrong}"
            raise InvalidRequest(name, message)
