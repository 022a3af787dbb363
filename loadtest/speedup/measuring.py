"""How are methods measured against each other? In turn, prompt by prompt, so that all see the same machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from loadtest.speedup.prompts import Prompt
from loadtest.speedup.record import Record
from swift_backend import SamplingParams, SwiftLLM
from swift_backend.errors import SwiftError

PLAIN = "off"
WARM_UP_TOKENS = 8


def warm_up(llm: SwiftLLM, prompt: Prompt, methods: Sequence[str]) -> None:
    """The first pass of each kind is slower; a method that fails here is counted when it is measured."""
    for method in methods:
        with contextlib.suppress(SwiftError):
            llm.generate([prompt.token_ids], SamplingParams(max_tokens=WARM_UP_TOKENS, speculation=method))


def measure(
    llm: SwiftLLM, batches: Sequence[Sequence[Prompt]], methods: Sequence[str], sampling: dict[str, Any], first: int = 0
) -> Iterator[list[Record]]:
    """The records of each batch from number `first` on, one for each method, `off` among them, in changing order.

    A method that fails on a batch has a record that says so, and the run goes on.
    """
    for number in range(first, len(batches)):
        turn = number % len(methods)
        records = {
            method: run(llm, number, batches[number], method, sampling) for method in [*methods[turn:], *methods[:turn]]
        }
        for method in methods:
            records[method].compare(records[PLAIN])
        yield [records[method] for method in methods]


def run(
    llm: SwiftLLM,
    number: int,
    batch: Sequence[Prompt],
    method: str,
    sampling: dict[str, Any],
    generate: Callable[..., Any] | None = None,
) -> Record:
    """One method on one batch; generate: in place of the model's."""
    record = Record(number, batch[0].category, method, len(batch), batch[0].segment)
    params = params_of(method, sampling)
    try:
        record.fill((generate or llm.generate)([prompt.token_ids for prompt in batch], params))
    except SwiftError as error:
        record.error = f"{type(error).__name__}: {error}"
    return record


def params_of(method: str, sampling: dict[str, Any]) -> SamplingParams:
    """InvalidRequest for what no request may ask."""
    return SamplingParams(speculation=method, **known(method, sampling))


def known(method: str, sampling: dict[str, Any]) -> dict[str, Any]:
    """Without what `off` has no use for."""
    drafting = ("max_draft_tokens", "confidence_threshold")
    return {name: value for name, value in sampling.items() if method != PLAIN or name not in drafting}
