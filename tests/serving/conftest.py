"""A strict stand-in for triton_python_backend_utils, installed before anything imports swift_backend.serving.

It refuses what the real stub refuses (a send after FINAL, unknown flags, a plain send without a response, an error code
that isn't one), and a test fails whose request never got its FINAL.
"""

from __future__ import annotations

import enum
import json
import math
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

FINAL = 1


class Code(enum.Enum):
    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class TritonError:
    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG = Code.UNKNOWN, Code.INTERNAL, Code.NOT_FOUND, Code.INVALID_ARG
    UNAVAILABLE, UNSUPPORTED = Code.UNAVAILABLE, Code.UNSUPPORTED
    ALREADY_EXISTS, CANCELLED = Code.ALREADY_EXISTS, Code.CANCELLED

    def __init__(self, message: str, code: Code = Code.INTERNAL) -> None:
        if not isinstance(code, Code):
            raise TypeError(f"not an error code: {code!r}")
        message.encode("utf-8")  # the real one takes no lone surrogates
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> Code:
        return self._code


class TritonModelException(Exception):
    pass


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        if not name or not isinstance(array, np.ndarray):
            raise TypeError("a tensor needs a name and a numpy array")
        if array.dtype == np.object_ and not all(isinstance(item, bytes) for item in array.flat):
            raise TypeError(f"{name} must hold bytes")
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        if error is not None and not isinstance(error, TritonError):
            raise TypeError("error must be a TritonError")
        self._output_tensors, self._error = output_tensors or [], error

    def output_tensors(self) -> list[Tensor]:
        return self._output_tensors

    def error(self) -> TritonError | None:
        return self._error

    def has_error(self) -> bool:
        return self._error is not None


class Logger:
    lines: ClassVar[list[tuple[str, str]]] = []

    @classmethod
    def log_info(cls, message: str) -> None:
        cls.lines.append(("info", message))

    @classmethod
    def log_warn(cls, message: str) -> None:
        message.encode("utf-8")
        cls.lines.append(("warn", message))

    @classmethod
    def log_error(cls, message: str) -> None:
        message.encode("utf-8")
        cls.lines.append(("error", message))

    @classmethod
    def log_verbose(cls, message: str) -> None:
        message.encode("utf-8")
        cls.lines.append(("verbose", message))


class Metric:
    """Sums what was added under its family's name and labels, whoever made it, like Triton's.

    AssertionError, which nobody expects, where Triton 2.51 ends the whole server. threads: those that changed some.
    """

    values: ClassVar[dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    observed: ClassVar[dict[str, list[float]]] = {}
    threads: ClassVar[set[threading.Thread]] = set()
    broken: ClassVar[bool] = False

    def __init__(self, family: MetricFamily, labels: dict[str, str], buckets: list[float] | None) -> None:
        if (family.kind == "histogram") != bool(buckets):
            raise TritonModelException("buckets are for histograms, which need them")
        if buckets and (sorted(buckets) != buckets or not all(isinstance(one, float) for one in buckets)):
            raise TritonModelException("buckets must be sorted numbers")
        self._family, self._key = family, (family.name, tuple(sorted(labels.items())))
        if buckets:
            self.observed.setdefault(family.name, [])
        else:
            self.values.setdefault(self._key, 0.0)

    def increment(self, value: float) -> None:
        self._touch()
        assert self._family.kind == "gauge" or (self._family.kind == "counter" and value >= 0), "the server is gone"
        assert math.isfinite(value)
        self.values[self._key] += value

    def observe(self, value: float) -> None:
        self._touch()
        assert self._family.kind == "histogram"
        self.observed[self._family.name].append(value)

    def _touch(self) -> None:
        self.threads.add(threading.current_thread())
        if self.broken:
            raise TritonModelException("the server does not answer")


class MetricFamily:
    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
    available = True

    def __init__(self, name: str, description: str, kind: str) -> None:
        if not self.available:
            raise TritonModelException("failed to create metric family: metrics are disabled")
        self.name, self.description, self.kind = name, description, kind

    def Metric(self, labels: dict[str, str], buckets: list[float] | None = None) -> Metric:
        return Metric(self, labels, buckets)


def get_input_tensor_by_name(request: FakeRequest, name: str) -> Tensor | None:
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)


@dataclass
class FakeSender:
    """Records what was sent; `broken` sends fail, `cancelled` is what the server would answer."""

    cancelled: bool = False
    broken: int = 0
    polls: int = 0
    responses: list[InferenceResponse] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if self.done.is_set():
            raise RuntimeError("Unable to send response. Response sender has been closed.")
        if flags not in (0, FINAL):
            raise RuntimeError("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise RuntimeError("Inference Response object must be provided when the response flags is set to zero.")
        if self.broken:
            self.broken -= 1
            raise RuntimeError("the pipe is broken")
        assert response is not None, "FINAL must ride on the last data"
        self.responses.append(response)
        self.flags.append(flags)
        if flags == FINAL:
            self.done.set()

    def is_cancelled(self) -> bool:
        assert not self.done.is_set(), "asked about a request that is over"
        self.polls += 1
        return self.cancelled

    @property
    def tables(self) -> list[dict[str, Any]]:
        """Every response as {output: value}, an error as {"error": message, "code": code}."""
        return [response_table(response) for response in self.responses]

    def texts(self) -> list[str]:
        return [table["text_output"] for table in self.tables]


def response_table(response: InferenceResponse) -> dict[str, Any]:
    error = response.error()
    if error is not None:
        return {"error": error.message(), "code": error.code().name}
    return {tensor.name(): value(tensor.as_numpy()) for tensor in response.output_tensors()}


def value(array: np.ndarray) -> Any:
    """A string as text, everything else as a list."""
    return array[0].decode() if array.dtype == np.object_ else array.tolist()


class FakeRequest:
    """What the client wrote as bytes is decoded when it is asked for, as the real one does."""

    def __init__(
        self, inputs: dict[str, np.ndarray], request_id: str | bytes, parameters: Any, timeout: int = 0
    ) -> None:
        self._inputs = [Tensor(name, array) for name, array in inputs.items()]
        self._request_id, self._parameters, self._timeout = request_id, parameters, timeout
        self.sender = FakeSender()

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._request_id.decode() if isinstance(self._request_id, bytes) else self._request_id

    def parameters(self) -> str:
        return self._parameters.decode() if isinstance(self._parameters, bytes) else json.dumps(self._parameters)

    def timeout(self) -> int:
        return self._timeout

    def get_response_sender(self) -> FakeSender:
        return self.sender


def tensor_of(value: Any) -> np.ndarray:
    """Python values in the contract's datatypes: bool, text or bytes, a list of ints."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, bool):
        return np.array([value])
    if isinstance(value, list):
        return np.array(value, dtype=np.int32)
    return np.array([value.encode() if isinstance(value, str) else value], dtype=np.object_)


class FakeTriton:
    """Makes requests and senders, and knows at the end which of them are still open."""

    FINAL = FINAL
    Code = Code
    Exception = TritonModelException

    def __init__(self) -> None:
        self.senders: list[FakeSender] = []
        self.log: list[tuple[str, str]] = Logger.lines
        self.log.clear()
        Metric.values.clear()
        Metric.observed.clear()
        Metric.threads.clear()

    def sender(self, **state: Any) -> FakeSender:
        self.senders.append(FakeSender(**state))
        return self.senders[-1]

    def request(
        self,
        request_id: str | bytes = "",
        parameters: Any = None,
        decoupled: bool = True,
        microseconds: int = 0,
        **inputs: Any,
    ) -> FakeRequest:
        tensors = {name: tensor_of(value) for name, value in inputs.items()}
        request = FakeRequest(tensors, request_id, parameters or {}, microseconds)
        if decoupled:
            self.senders.append(request.sender)
        return request

    def table(self, response: InferenceResponse) -> dict[str, Any]:
        return response_table(response)

    def errors(self) -> list[str]:
        return [message for level, message in self.log if level == "error"]

    def count(self, name: str, **labels: str) -> float:
        """The value of a counter or gauge in /metrics."""
        return Metric.values[name, tuple(sorted(labels.items()))]

    def observed(self, name: str) -> list[float]:
        """What a histogram was told."""
        return Metric.observed[name]

    @property
    def metric_threads(self) -> set[threading.Thread]:
        """Those that have changed a metric."""
        return Metric.threads

    def shown(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """All counters and gauges that are not 0."""
        return {key: value for key, value in Metric.values.items() if value}

    def verify(self) -> None:
        """Every request ended, with exactly one FINAL and nothing after it."""
        for sender in self.senders:
            assert sender.flags and sender.flags == [0] * (len(sender.flags) - 1) + [FINAL]


def install() -> None:
    module: Any = ModuleType("triton_python_backend_utils")
    things = (TritonError, TritonModelException, Tensor, InferenceResponse, Logger, Metric, MetricFamily)
    for thing in (*things, get_input_tensor_by_name):
        setattr(module, thing.__name__, thing)
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    sys.modules["triton_python_backend_utils"] = module


install()


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    """A fake Triton; the test fails if a request that it made wasn't ended."""
    fake = FakeTriton()
    yield fake
    fake.verify()
