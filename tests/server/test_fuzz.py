"""Malformed and nearly right requests at a real server: a typed error or a right answer, and nobody else notices.

SWIFT_FUZZ_EXAMPLES multiplies the number of examples, SWIFT_FUZZ_SEED draws others than those of every day.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from loadtest.grpc_stream import Chunk, GrpcStream, StreamError, chunks_of, request_of
from swift_backend.admission import Limits
from swift_backend.errors import InvalidRequest
from swift_backend.params import SamplingParams
from swift_backend.request_keys import KEYS, SPECULATION_MODES
from swift_backend.sequence import Request
from swift_backend.serving.server_process import RunningServer

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

SECONDS = 30.0
CONTEXT, VOCABULARY = 256, 64
LIMITS = Limits(vocab_size=VOCABULARY, context_length=CONTEXT, cache_capacity=8 * CONTEXT, max_draft_tokens=15)
REASONS = {"stop", "length", "timeout"}
# What only a bug of ours would let through.
NOT_TYPED = re.compile(r"internal error|Traceback|^At:|\.py\b|engine has", re.MULTILINE)
# Triton's own HTTP front says 500 to a body that it cannot read; such a request never reaches us.
OF_TRITONS_HTTP = re.compile(
    r"failed to parse the request JSON buffer|^Unable to parse|^Expected JSON|^attempt to |JSON non-"
)
SCALE = float(os.environ.get("SWIFT_FUZZ_EXAMPLES", "1"))
SEED = os.environ.get("SWIFT_FUZZ_SEED") or None

# Without w1 and w2, special tokens that the tiny tokenizer also finds at the beginning of w17 and w25.
PROMPTS = ([3, 4, 5], [47], [9, 8, 7, 6, 60, 33])
GOOD = {"text_input": "w3 w4 w5", "stream": True}
# They change which token is the likeliest, or are random.
CHANGING = {"temperature", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words"}
CHANGING |= {"min_tokens"}


def examples(count: int) -> Any:
    """The same examples every day, unless a seed is given."""
    chosen = settings(
        max_examples=int(count * SCALE),
        deadline=None,
        derandomize=SEED is None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: chosen(seed(int(SEED))(test) if SEED else test)


def ask(stream: GrpcStream, request: Any) -> list[Chunk] | str:
    """The answer, or the error's message; a hang or a dead server raises grpc.RpcError."""
    try:
        return list(chunks_of(stream.send(request, timeout=SECONDS)))
    except StreamError as error:
        return str(error)


def ids_of(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.outputs["output_ids"]]


def check_error(message: str) -> None:
    assert message and not NOT_TYPED.search(message), message


def check_answer(chunks: list[Chunk]) -> None:
    """What is true of every answer, whatever was asked."""
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [chunk.outputs["finish_reason"] in REASONS for chunk in chunks] == [c.final for c in chunks]
    for chunk in chunks:
        assert len(chunk.outputs["output_ids"]) == chunk.outputs["num_output_tokens"]
        assert chunk.outputs["num_input_tokens"] >= 1
    assert all(0 <= token < VOCABULARY for token in ids_of(chunks))


@pytest.fixture(scope="module")
def continuations(tiny_stream: GrpcStream) -> dict[tuple[int, ...], list[int]]:
    """What the model says to each of PROMPTS when nothing is drafted, to the end of its context."""
    parameters = {"ignore_eos": True, "max_tokens": CONTEXT, "speculation": "off"}
    answers = [list(tiny_stream.stream("swift_decoder", {"input_ids": ids}, parameters)) for ids in PROMPTS]
    return {tuple(ids): ids_of(chunks) for ids, chunks in zip(PROMPTS, answers, strict=True)}


@pytest.fixture(autouse=True)
def others_go_on(
    tiny_server: RunningServer, tiny_stream: GrpcStream, continuations: dict[tuple[int, ...], list[int]]
) -> Iterator[None]:
    """Good streams run beside every test and stay right; afterwards the server lives and still answers."""
    expected, wrong, over = continuations[tuple(PROMPTS[0])], [], threading.Event()
    served = 0

    def run() -> None:
        nonlocal served
        while not over.is_set():
            parameters = {"ignore_eos": True, "max_tokens": 30, "speculation": "off" if served % 2 else "fixed"}
            outcome = ask(tiny_stream, request_of("swift", GOOD, parameters))
            if isinstance(outcome, str) or ids_of(outcome) != expected[:30]:
                wrong.append(outcome)
            served += 1
            over.wait(0.05)

    witness = threading.Thread(target=run)
    witness.start()
    yield
    over.set()
    witness.join(SECONDS)
    assert not witness.is_alive() and served > 1 and wrong == []
    for path in ("health/live", "health/ready", "models/swift/ready", "models/swift_decoder/ready"):
        assert httpx.get(f"{tiny_server.http_url}/v2/{path}", trust_env=False).status_code == 200
    assert ids_of(list(tiny_stream.stream("swift", GOOD, {"max_tokens": 5}))) == expected[:5]


# What clients may write as a key's value.

texts = st.text(st.characters(), max_size=8)
surrogates = st.sampled_from(["\ud800", "w3\udfff"])
numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats())
scalars = st.one_of(st.booleans(), numbers, texts, numbers.map(str))
junk = st.one_of(
    st.none(),
    scalars,
    surrogates,
    st.integers(10**19, 10**25),
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2)),
)
ids = st.integers(0, VOCABULARY - 1)
words = ids.map("w{}".format)
biases = st.dictionaries(ids.map(str), st.floats(-100, 100), max_size=3)
RIGHT: dict[str, Any] = {
    "max_tokens": st.integers(1, 12),
    "min_tokens": st.integers(0, 4),
    "logit_bias": biases,
    "bad_words": st.lists(words, max_size=2),
    "stop": words | st.lists(words, max_size=3),
    "stop_token_ids": st.lists(ids, max_size=3),
    "speculation": st.sampled_from(SPECULATION_MODES),
    "max_draft_tokens": st.integers(0, 15),
    "timeout_ms": st.integers(1, 2**31 - 1),
}


def right_values(key: str) -> Any:
    """Values that the contract allows."""
    limits = KEYS[key].limits
    if key in RIGHT:
        return RIGHT[key]
    if limits is None:
        return st.booleans()
    if limits.integer:
        return st.integers(int(limits.low), int(limits.high))
    return st.floats(limits.low, limits.high, exclude_min=limits.low_open)


NEARLY_RIGHT: dict[str, Any] = {
    "stop": st.lists(words | surrogates | st.just(""), min_size=1, max_size=17) | st.just(["x"] * 17) | surrogates,
    "bad_words": st.lists(words | surrogates | st.just(""), min_size=1, max_size=2),
    "stop_token_ids": st.lists(ids | st.sampled_from([-1, VOCABULARY, 2**31, 0.5, "1", True]), max_size=2),
    "logit_bias": st.dictionaries(st.sampled_from(["0", "-1", str(VOCABULARY), "1.5", "x"]), st.floats(-101, 101)),
    "max_draft_tokens": st.integers(15, 16),
}


def nearly_right_values(key: str) -> Any:
    """Values that are off by a little, if at all."""
    limits = KEYS[key].limits
    if key in NEARLY_RIGHT or limits is None:
        return NEARLY_RIGHT.get(key, st.sampled_from(["true", "False", 1, 0, "yes", "AUTO"]))
    ends = [limits.low, limits.high, limits.low - 1, limits.high + 1, limits.low - 1e-9, limits.high + 1e-6]
    ends += [math.nextafter(limits.low, limits.high), 1e-38, 1e-300]
    return st.sampled_from([*ends, "", "NaN", " 1 ", "0x1", "1_0", [1], float("nan"), float("inf")])


def right_or_wrong(key: str) -> Any:
    return st.one_of(nearly_right_values(key), nearly_right_values(key), right_values(key).map(str), junk)


@st.composite
def sampling(draw: Any) -> dict[str, Any]:
    """A few keys with values that are right, and in most cases one or two that may not be."""
    names = st.sampled_from(sorted(KEYS))
    right = {key: draw(right_values(key)) for key in draw(st.sets(names, max_size=3))}
    wrong = {
        key: draw(right_or_wrong(key)) for key in draw(st.sets(names, min_size=draw(st.integers(0, 1)), max_size=2))
    }
    unknown = {draw(texts): draw(junk)} if draw(st.integers(0, 15)) == 0 else {}
    return {"max_tokens": draw(st.integers(1, 8)), **right, **wrong, **unknown}


def may_be_a_parameter(key: str, value: Any) -> bool:
    """What protobuf can carry."""
    fits = isinstance(value, bool | float | str) or (isinstance(value, int) and -(2**63) <= value < 2**63)
    return fits and not any("\ud800" <= character <= "\udfff" for character in f"{key}{value}")


def refusal(prompt: list[int], values: dict[str, Any]) -> InvalidRequest | None:
    """Why the request must be refused, from the tables alone."""
    try:
        params = SamplingParams.from_mapping(values)
        LIMITS.check(Request("1", prompt, params, print))
        "".join([*params.stop, *params.bad_words]).encode()
    except UnicodeEncodeError:
        return InvalidRequest("stop", "no text")
    except InvalidRequest as error:
        return error
    return None


@examples(200)
@given(prompt=st.sampled_from(PROMPTS), values=sampling(), outside=st.sets(st.integers(0, 5)), stream=st.booleans())
def test_sampling_keys_are_refused_by_the_table_and_obeyed_otherwise(
    tiny_stream: GrpcStream,
    continuations: dict[tuple[int, ...], list[int]],
    prompt: list[int],
    values: dict[str, Any],
    outside: set[int],
    stream: bool,
) -> None:
    names = [key for n, key in enumerate(values) if n in outside and may_be_a_parameter(key, values[key])]
    inner = json.dumps({key: value for key, value in values.items() if key not in names})
    tensors = {"text_input": " ".join(map("w{}".format, prompt)), "stream": stream, "sampling_parameters": inner}
    outcome = ask(tiny_stream, request_of("swift", tensors, {key: values[key] for key in names}))
    refused = refusal(prompt, values)
    if refused is not None:
        assert isinstance(outcome, str), (refused, outcome)
        check_error(outcome)
        return
    assert not isinstance(outcome, str), outcome
    check_answer(outcome)
    params, answer = SamplingParams.from_mapping(values), ids_of(outcome)
    assert len(answer) <= params.max_tokens
    assert (outcome[0].outputs["logprobs"] == "") is (params.logprobs is None)
    if not CHANGING & values.keys():
        assert answer == continuations[tuple(prompt)][: len(answer)]


def tensor(datatypes: Any) -> Any:
    """A tensor of any datatype and small shape."""
    shapes = st.sampled_from([(1,), (0,), (2,), (1, 1), (3,), ()])
    return st.builds(lambda dtype, shape: np.zeros(shape, dtype), st.sampled_from(datatypes), shapes)


numeric = tensor([np.bool_, np.int32, np.int64, np.uint8, np.float32, np.float64])
strings = st.lists(st.binary(max_size=12) | texts.map(lambda text: text.encode("utf-8", "surrogatepass")), max_size=3)
string_tensors = strings.map(lambda items: np.array(items, dtype=np.object_))
messages = st.recursive(scalars | surrogates, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
    st.sampled_from(["role", "content", "x"]), inner, max_size=3), max_leaves=6).map(json.dumps)  # fmt: skip
FLAGS = ("stream", "exclude_input_in_output", "return_logprobs", "return_num_input_tokens", "stop")


@st.composite
def tensors_of_swift(draw: Any) -> dict[str, Any]:
    """Inputs of `swift`, some of them not what they should be."""
    right = {
        "text_input": st.sampled_from(["w3", "w3 w4", "unknown", "w3 " * 300, "", " ", "w3\0"]),
        "messages": messages | st.just('[{"role": "user", "content": "w5"}]'),
        "sampling_parameters": sampling().map(json.dumps) | texts | st.just(""),
        **{flag: st.booleans() for flag in FLAGS},
        "nonsense": st.just("x"),
    }
    names = draw(st.lists(st.sampled_from(sorted(right)), unique=True, max_size=3))
    given_ = {name: draw(st.one_of(right[name], right[name], numeric, string_tensors)) for name in names}
    return {"text_input": "w3 w4", **given_} if draw(st.booleans()) else given_


@st.composite
def tensors_of_decoder(draw: Any) -> dict[str, Any]:
    """Inputs of `swift_decoder`, with ids in and out of its vocabulary and context."""
    any_ids = st.lists(st.integers(-(2**31), 2**31 - 1) | ids, max_size=4)
    chosen = st.one_of(any_ids, st.lists(ids, min_size=1, max_size=5), st.just([3] * 255), st.just([3] * 256))
    arrays = chosen.map(lambda items: np.array(items, dtype=np.int32))
    prompt = st.one_of(arrays, arrays, numeric, arrays.map(lambda array: array.reshape(1, -1)))
    flags = draw(st.dictionaries(st.sampled_from(FLAGS), st.booleans() | numeric, max_size=2))
    return {**flags, **({"input_ids": draw(prompt)} if draw(st.integers(0, 9)) else {})}


def damaged(request: Any, place: int, content: bytes | None, shape: list[int] | None) -> Any:
    """The request with one tensor's bytes or shape replaced, as no honest client would write it."""
    if request.inputs:
        place %= len(request.inputs)
        if content is not None:
            request.raw_input_contents[place] = content
        if shape is not None:
            request.inputs[place].shape[:] = shape
    return request


contents = st.none() | st.binary(max_size=12) | st.sampled_from([b"", b"\xff\xff\xff\xff", b"\x02\0\0\0w3junk", b"\7"])
raw_shapes = st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)
client_ids = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@examples(120)
@given(
    inputs=st.tuples(st.just("swift"), tensors_of_swift()) | st.tuples(st.just("swift_decoder"), tensors_of_decoder()),
    damage=st.none() | st.tuples(st.integers(0, 3), contents, raw_shapes),
    client_id=client_ids,
)
def test_tensors_of_any_kind_get_an_answer_or_an_error(
    tiny_stream: GrpcStream, inputs: tuple[str, dict[str, Any]], damage: Any, client_id: str
) -> None:
    model, tensors = inputs
    request = request_of(model, tensors, {"max_tokens": 3}, request_id=client_id)
    outcome = ask(tiny_stream, damaged(request, *damage) if damage else request)
    if isinstance(outcome, str):
        check_error(outcome)
    elif "cancelled" in outcome[0].outputs:
        assert (len(outcome), outcome[0].outputs["cancelled"], outcome[0].final) == (1, False, True)
    else:
        check_answer(outcome)


# Where a body gets a byte that is no UTF-8.
BROKEN = "☠"


@st.composite
def bodies(draw: Any) -> bytes:
    """A /generate body: raw bytes, random JSON, or a right one with a few wrong entries."""
    right = {"text_input": "w3 w4", "max_tokens": 3}
    names = st.sampled_from([*sorted(KEYS), *FLAGS, "id", "parameters", "messages", "text_input", "x"])
    wrong = st.dictionaries(names, junk, max_size=2)
    broken = st.dictionaries(
        st.sampled_from(["id", "stop", "speculation", "text_input", BROKEN]), st.just(BROKEN), max_size=2
    )
    objects = [right, {**right, **draw(wrong)}, {**right, **draw(broken)}, {**right, **draw(broken), **draw(wrong)}]
    value = draw(st.sampled_from([*objects, draw(junk)]))
    text = json.dumps(value, ensure_ascii=False) if BROKEN in str(value) else json.dumps(value)
    encoded = text.encode("utf-8", "surrogatepass").replace(BROKEN.encode(), b"w3\xff")
    body = draw(st.sampled_from([encoded, encoded, encoded, draw(st.binary(max_size=20))]))
    cut, byte = draw(st.integers(0, len(body))), draw(st.sampled_from([*[b""] * 8, b"\xff", b"\0", b'"', b"}"]))
    return bytes(body[:cut] + byte + body[cut:])


@examples(100)
@given(body=bodies(), model=st.sampled_from(["swift", "swift", "swift_decoder"]), streaming=st.booleans())
def test_http_bodies_of_any_kind_get_an_answer_or_an_error(
    tiny_server: RunningServer, body: bytes, model: str, streaming: bool
) -> None:
    url = f"{tiny_server.http_url}/v2/models/{model}/generate{'_stream' * streaming}"
    response = httpx.post(url, content=body, timeout=SECONDS, trust_env=False)
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    answers = [json.loads(line) for line in lines]
    for answer in answers:
        if "error" in answer:
            assert response.status_code == 400 or OF_TRITONS_HTTP.search(answer["error"]), (response, answer)
            check_error(answer["error"])
    if response.status_code == 200:
        assert answers[-1].get("finish_reason") in REASONS or "cancelled" in answers[-1], answers
