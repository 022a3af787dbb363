"""What a request changes in its logits: literal cases, transformers' processors, drafted tokens, many rows at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_backend.params import SamplingParams
from swift_backend.processors import Processors, make_processors, process

EOS = 1


def processors(prompt: list[int], output: list[int], words: list[list[int]] | None = None, **params: Any) -> Processors:
    made = make_processors(SamplingParams(**params), prompt, words or [], [EOS])
    assert made is not None
    for token in output:
        made.append(token)
    return made


def processed(logits: list[float], made: Processors, drafted: tuple[int, ...] = ()) -> list[float]:
    rows = torch.tensor([logits])
    process(rows, [(made, drafted)])
    return rows[0].tolist()


INF = float("inf")
LOGITS = [2.0, -1.0, 0.0, 3.0, -2.0]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        # prompt and output alike; negative logits are multiplied
        (processors([0, 1], [4], repetition_penalty=2.0), [1.0, -2.0, 0.0, 3.0, -4.0]),
        # output only, once each
        (processors([0, 1], [4, 4], presence_penalty=0.5), [2.0, -1.0, 0.0, 3.0, -2.5]),
        # output only, as often as it is there
        (processors([0, 1], [4, 4, 0], frequency_penalty=0.5), [1.5, -1.0, 0.0, 3.0, -3.0]),
        (
            processors([0], [4, 4], repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=0.25),
            [1.0, -1.0, 0.0, 3.0, -5.5],
        ),
        (processors([0], [3], presence_penalty=-1.0), [2.0, -1.0, 0.0, 4.0, -2.0]),
        (processors([0], [], logit_bias={3: -100.0, 4: 7.5}), [2.0, -1.0, 0.0, -97.0, 5.5]),
        # penalties first, then the bias
        (processors([0], [], logit_bias={0: 1.0}, repetition_penalty=2.0), [2.0, -1.0, 0.0, 3.0, -2.0]),
        (processors([0], [], [[3]]), [2.0, -1.0, 0.0, -INF, -2.0]),
        (processors([0, 2], [3], [[2, 3, 4], [3, 0], [2, 4]]), [-INF, -1.0, 0.0, 3.0, -INF]),
        # a bad word may begin in the prompt
        (processors([2, 3], [], [[2, 3, 4]]), [2.0, -1.0, 0.0, 3.0, -INF]),
        (processors([3], [], [[2, 3, 4]]), LOGITS),
        (processors([0], [2], min_tokens=2), [2.0, -INF, 0.0, 3.0, -2.0]),
        (processors([0], [2, 2], min_tokens=2), LOGITS),
        (processors([0], [2], min_tokens=2, stop_token_ids=(3,)), [2.0, -INF, 0.0, -INF, -2.0]),
        (processors([0], [2], min_tokens=2, stop_token_ids=(3,), ignore_eos=True), [2.0, -1.0, 0.0, -INF, -2.0]),
        # with every token banned the bans are lifted
        (processors([0], [], [[0], [1], [2], [3], [4]]), LOGITS),
    ],
)
def test_literal(made: Processors, expected: list[float]) -> None:
    assert processed(LOGITS, made) == expected


def test_requests_that_change_nothing_have_none() -> None:
    assert make_processors(SamplingParams(temperature=1.0, top_k=3), [1], [], [EOS]) is None


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"repetition_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": -0.6}, []),
        ({"min_tokens": 3}, []),
        ({}, [[7], [9, 3], [5, 6, 7, 2]]),
        ({"repetition_penalty": 0.5, "frequency_penalty": 2.0, "min_tokens": 4}, [[7], [9, 3], [5, 6, 7, 2]]),
    ],
)
@pytest.mark.parametrize("drafted", [(), (7,), (7, 7), (3, 9, 3), (9, 5, 6, 7)])
def test_drafted_tokens_count_like_committed_ones(
    params: dict[str, Any], words: list[list[int]], drafted: tuple[int, ...]
) -> None:
    """vLLM #6718: a row in the middle of a draft sees the tokens before it."""
    logits = torch.randn(12, generator=torch.Generator().manual_seed(4)).tolist()
    before = processors([3, 5], [9], words, **params)
    after = processors([3, 5], [9, *drafted], words, **params)
    assert processed(logits, before, drafted) == processed(logits, after)
    assert processed(logits, before) == processed(logits, processors([3, 5], [9], words, **params))


def transformers_scores(
    logits: torch.Tensor, ids: list[int], num_prompt: int, params: dict[str, Any], bad_words: list[list[int]]
) -> torch.Tensor:
    from transformers.generation import logits_process as theirs

    chain: list[Any] = []
    if "repetition_penalty" in params:
        chain.append(theirs.RepetitionPenaltyLogitsProcessor(params["repetition_penalty"]))
    if params.get("logit_bias"):
        chain.append(theirs.SequenceBiasLogitsProcessor([[[token], b] for token, b in params["logit_bias"].items()]))
    if bad_words:
        chain.append(theirs.NoBadWordsLogitsProcessor(bad_words))
    if "min_tokens" in params:
        chain.append(theirs.MinNewTokensLengthLogitsProcessor(num_prompt, params["min_tokens"], [EOS], device="cpu"))
    scores = logits[None].clone()
    for processor in chain:
        scores = processor(torch.tensor([ids]), scores)
    return scores[0]


VOCABULARY = 20
TOKENS = st.integers(0, VOCABULARY - 1)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.3, 1.2, 2.0, 10.0]),
        "logit_bias": st.dictionaries(TOKENS, st.sampled_from([-100.0, -1.5, 0.25, 100.0]), min_size=1, max_size=4),
        "min_tokens": st.integers(1, 6),
    },
)
WORDS = st.lists(st.lists(TOKENS.filter(lambda t: t != EOS), min_size=1, max_size=3), max_size=4, unique_by=tuple)
ROW = st.tuples(st.lists(TOKENS, min_size=1, max_size=8), st.lists(TOKENS, max_size=6), st.lists(TOKENS, max_size=5))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(ROW, PARAMS, WORDS), min_size=1, max_size=6))
def test_many_rows_at_once_agree_with_transformers(
    cases: list[tuple[tuple[list[int], list[int], list[int]], dict[str, Any], list[list[int]]]],
) -> None:
    logits = 3 * torch.randn(len(cases), VOCABULARY, generator=torch.Generator().manual_seed(len(cases)))
    rows, expected = [], []
    for row, ((prompt, output, drafted), params, words) in zip(logits, cases, strict=True):
        made = make_processors(SamplingParams(**params), prompt, words, [EOS])
        for token in output if made else ():
            made.append(token)  # type: ignore[union-attr]
        rows.append((made, drafted))
        expected.append(transformers_scores(row, [*prompt, *output, *drafted], len(prompt), params, words))
    process(logits, rows)
    torch.testing.assert_close(logits, torch.stack(expected), atol=1e-5, rtol=1e-5)
