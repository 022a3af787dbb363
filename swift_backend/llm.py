"""The engine without Triton: generate, stream and chat from Python."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import count
from operator import index
from pathlib import Path
from typing import Any

from swift_backend.config import EngineConfig
from swift_backend.engine import Engine
from swift_backend.errors import InvalidRequest
from swift_backend.params import SamplingParams
from swift_backend.request_keys import is_text
from swift_backend.request_stats import RequestStats
from swift_backend.sequence import Output, Request, TokenLogprob

Prompt = str | list[int]
UNBOUNDED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer.

    text: the answer; token_ids: its ids, the end-of-sequence token included; finish_reason: stop, length or timeout.
    logprobs: one for each of token_ids where params.logprobs asked for them, else empty; cumulative_logprob their sum.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    num_prompt_tokens: int
    stats: RequestStats
    logprobs: tuple[TokenLogprob, ...] = ()
    cumulative_logprob: float = 0.0


class SwiftLLM:
    """A language model that drafts with its own layers.

    model: directory, hub id or .gguf file; None is the default model. dtype and the other options are
    EngineConfig's. Not safe for several threads at once. What it learns of layer sets is kept for the next one.

    >>> llm = SwiftLLM()
    >>> out = llm.generate(["The capital of France is"], SamplingParams(max_tokens=3))[0]
    >>> out.text, out.finish_reason
    (' Paris.', 'length')
    """

    def __init__(self, model: str | Path | None = None, dtype: str = "auto", **engine_options: Any) -> None:
        """Load the model; raises ModelLoadError or ConfigError."""
        options = {"max_waiting": UNBOUNDED, **engine_options}  # nobody else waits here: any number of prompts is fine
        name = None if model is None else str(model)
        self.engine = Engine(EngineConfig.from_options(model=name, dtype=dtype, **options))
        self._ids = count()
        weakref.finalize(self, self.engine.pool_keeper.save)

    def generate(
        self, prompts: Prompt | Seq[Prompt], params: SamplingParams | Seq[SamplingParams] | None = None
    ) -> list[Completion]:
        """Answers in the order of the prompts (text or token ids), decoded together.

        params: for all prompts or one for each. Raises InvalidRequest before anything runs, and EngineFailure where the
        model's logits are no numbers.
        """
        many = _as_list(prompts)
        params = SamplingParams() if params is None else params
        each = [params] * len(many) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(many):
            raise InvalidRequest("params", f"params must be one or {len(many)}, got {len(each)}")
        outputs: list[list[Output]] = [[] for _ in many]
        submitted: list[str] = []
        try:
            for prompt, one, out in zip(many, each, outputs, strict=True):
                submitted.append(self._submit(prompt, one, out))
            self._drain()
        except BaseException:  # an invalid prompt, Ctrl-C: the next call must not find these requests running
            for request_id in submitted:
                self.engine.cancel(request_id)
            raise
        return [_completion(out) for out in outputs]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Output]:
        """The answer as deltas with .text and .token_ids; leaving the loop early cancels the request.

        Raises InvalidRequest at once.
        """
        news: deque[Output] = deque()
        return self._deltas(self._submit(prompt, params or SamplingParams(), news), news)

    def chat(self, messages: Seq[dict[str, str]], params: SamplingParams | None = None) -> Completion:
        """The answer to a conversation of {role, content}; InvalidRequest when the model has no chat template."""
        return self.generate([self.engine.tokenizer.encode_chat(list(messages))], params)[0]

    def _deltas(self, request_id: str, news: deque[Output]) -> Iterator[Output]:
        finished = False
        try:
            while not finished:
                self.engine.step()
                while news:
                    output = news.popleft()
                    finished = output.finished
                    if output.error is not None:
                        raise output.error
                    yield output
        finally:
            if not finished:
                self.engine.cancel(request_id)
                self._drain()

    def _submit(self, prompt: Prompt, params: SamplingParams, out: list[Output] | deque[Output]) -> str:
        if isinstance(prompt, str) and not is_text(prompt):
            raise InvalidRequest("prompts", f"prompts must be text, got half a surrogate pair in {prompt!r:.80}")
        ids = self.engine.tokenizer.encode(prompt) if isinstance(prompt, str) else _token_ids(prompt)
        request_id = f"local-{next(self._ids)}"
        self.engine.submit(Request(request_id, ids, params, out.append))
        return request_id

    def _drain(self) -> None:
        while self.engine.step() or not self.engine.idle:
            pass


def _as_list(prompts: Prompt | Seq[Prompt]) -> list[Prompt]:
    """One prompt, text or a list of ids, as a list of one; a list that mixes ids with prompts is one wrong prompt."""
    if isinstance(prompts, str):
        return [prompts]
    items: list[Any] = list(prompts)
    one = any(not isinstance(item, str) and not hasattr(item, "__len__") for item in items)
    return [items] if one else items


def _token_ids(prompt: Seq[Any]) -> list[int]:
    try:
        return [index(token) for token in prompt]
    except TypeError:
        raise InvalidRequest("prompts", f"prompts must be text or lists of token ids, got {prompt!r:.80}") from None


def _completion(outputs: Seq[Output]) -> Completion:
    last = outputs[-1]
    if last.error is not None:
        raise last.error
    ids = [token for output in outputs for token in output.token_ids]
    text = "".join(output.text for output in outputs)
    logprobs = tuple(one for output in outputs for one in output.logprobs)
    return Completion(
        text, ids, last.finish_reason, last.num_prompt_tokens, last.stats, logprobs, last.cumulative_logprob
    )
