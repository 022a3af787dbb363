"""What the engine said becomes tensors of the contract's names, datatypes and shapes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from swift_backend.request_stats import RequestStats
from swift_backend.sequence import Output, TokenLogprob
from swift_backend.serving.answer import input_id_arrays, logprobs_json, merge, output_arrays, stop_arrays

DATATYPES = {
    "text_output": np.object_,
    "output_ids": np.int32,
    "finish_reason": np.object_,
    "num_input_tokens": np.uint32,
    "num_output_tokens": np.uint32,
    "cumulative_logprob": np.float32,
    "logprobs": np.object_,
    "total_draft_tokens": np.int32,
    "total_accepted_draft_tokens": np.int32,
    "acceptance_rate": np.float32,
}
STATS = RequestStats(draft_tokens=8, accepted_draft_tokens=6, output_tokens=30)


def word(token_id: int) -> str:
    return f"é{token_id}"


@pytest.mark.parametrize("token_ids", [(), (7, 8, 9)])
def test_every_response_has_the_contracts_ten_outputs(token_ids: tuple[int, ...]) -> None:
    arrays = output_arrays(Output("1", token_ids=token_ids))
    assert {name: array.dtype for name, array in arrays.items()} == DATATYPES
    assert {name: array.shape for name, array in arrays.items()} == {
        **dict.fromkeys(DATATYPES, (1,)),
        "output_ids": (len(token_ids),),
    }


def test_the_outputs_say_what_the_engine_said() -> None:
    output = Output("1", "é", (7, 8), finish_reason="length", num_prompt_tokens=11, stats=STATS)
    assert {name: array.tolist() for name, array in output_arrays(output).items()} == {
        "text_output": ["é".encode()],
        "output_ids": [7, 8],
        "finish_reason": [b"length"],
        "num_input_tokens": [11],
        "num_output_tokens": [2],
        "cumulative_logprob": [0.0],
        "logprobs": [b""],
        "total_draft_tokens": [8],
        "total_accepted_draft_tokens": [6],
        "acceptance_rate": [0.75],
    }


def test_logprobs_are_json_with_texts() -> None:
    tops = ((3, -0.123456789), (7, -2.0))
    logprobs = (TokenLogprob(7, -2.0, tops), TokenLogprob(8, -0.5))
    arrays = output_arrays(Output("1", "x", (7, 8), logprobs=logprobs, cumulative_logprob=-2.5), word)
    first, second = json.loads(arrays["logprobs"][0])
    assert first == {
        "token_id": 7,
        "logprob": -2.0,
        "token": "é7",
        "top": [{"token_id": 3, "logprob": -0.123457, "token": "é3"}, {"token_id": 7, "logprob": -2.0, "token": "é7"}],
    }
    assert second == {"token_id": 8, "logprob": -0.5, "token": "é8", "top": []}
    assert arrays["cumulative_logprob"].tolist() == [-2.5]


def test_a_response_without_tokens_has_an_empty_list_of_logprobs() -> None:
    assert output_arrays(Output("1"), word)["logprobs"].tolist() == [b"[]"]


def test_texts_are_not_looked_up_for_those_who_do_not_ask() -> None:
    assert output_arrays(Output("1", "x", (7,), logprobs=(TokenLogprob(7, -1.0),)))["logprobs"].tolist() == [b""]


@pytest.mark.parametrize("impossible", [-math.inf, math.nan])
def test_what_json_cannot_spell_is_a_number(impossible: float) -> None:
    logprobs = (TokenLogprob(7, impossible, ((7, impossible),)),)
    [entry] = json.loads(logprobs_json(logprobs, word))
    assert entry["logprob"] == entry["top"][0]["logprob"] == -9999.0
    arrays = output_arrays(Output("1", logprobs=logprobs, cumulative_logprob=impossible), word)
    assert arrays["cumulative_logprob"].tolist() == [-9999.0]


def test_merging_keeps_text_and_logprobs_and_the_last_word() -> None:
    one, two, three = (TokenLogprob(token, -float(token)) for token in (1, 2, 3))
    merged = merge(
        [
            Output("1", "ab", (1,), (one,), -1.0, num_prompt_tokens=3, stats=RequestStats(draft_tokens=2)),
            Output("1", "", (2, 3), (two, three), -6.0, num_prompt_tokens=3),
            Output("1", "c", (), (), -6.0, "stop", 3, STATS),
        ]
    )
    assert merged == Output("1", "abc", (1, 2, 3), (one, two, three), -6.0, "stop", 3, STATS)


def test_the_small_answers() -> None:
    stopped, ids = stop_arrays(True)["cancelled"], input_id_arrays([3, 4])["input_ids"]
    assert (str(stopped.dtype), stopped.tolist()) == ("bool", [True])
    assert (str(ids.dtype), ids.tolist()) == ("int32", [3, 4])
