"""What Triton adds is computed from pairs of the same round."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loadtest.serving_overhead import Level, Times, in_this_process, measure, table_of
from swift_backend import SamplingParams, SwiftLLM


def test_times_are_of_the_tokens_and_not_of_the_chunks() -> None:
    """A chunk without tokens (the last one, or one whose text is held back) is none; a chunk may bring several."""
    news = [(10.5, 0), (11.0, 1), (11.2, 3), (11.8, 1), (12.5, 0)]
    assert Times.of(10.0, news) == Times(1.0, pytest.approx(0.2))
    with pytest.raises(ValueError, match="one token"):
        Times.of(0.0, [(1.0, 4), (2.0, 0)])


def test_rounds_take_turns_and_each_is_a_pair() -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    def source(name: str, first: float, per_token: float) -> object:
        def ask(prompts: Sequence[str]) -> list[Times]:
            asked.append((name, tuple(prompts)))
            return [Times(first * (i + 1), per_token) for i, _ in enumerate(prompts)]

        return ask

    level = measure(source("triton", 0.5, 0.11), source("alone", 0.4, 0.1), ["a", "b", "c"], 2, 3)  # type: ignore[arg-type]
    assert asked[2:] == [
        *(("alone", ("a", "b")), ("triton", ("a", "b"))),
        *(("triton", ("c", "a")), ("alone", ("c", "a"))),
        *(("alone", ("b", "c")), ("triton", ("b", "c"))),
    ]
    assert level.added_to_first == pytest.approx([0.15] * 3)
    assert level.per_token_ratios == pytest.approx([1.1] * 3)
    assert table_of([level, Level(8, level.triton[:1], level.alone[:1])], "").row_count == 2


def test_the_engine_in_this_process(tiny_model: object) -> None:
    llm = SwiftLLM(str(tiny_model("llama")), "float32", kv_cache_tokens=512)  # type: ignore[operator]
    ask = in_this_process(llm, SamplingParams(max_tokens=5, ignore_eos=True, speculation="off"))
    times = ask(["w3 w4 w5", "w6"])
    assert len(times) == 2 and all(one.first > 0 and one.per_token > 0 for one in times)
