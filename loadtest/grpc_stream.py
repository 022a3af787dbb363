"""One request over Triton's bidirectional gRPC stream, answered as plain Python values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import InferInput, InferResult, service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype

DTYPES = {"stream": np.bool_, "stop": np.bool_, "exclude_input_in_output": np.bool_, "input_ids": np.int32}
FLAGS = ("finish_reason", "num_input_tokens", "num_output_tokens", "cumulative_logprob", "logprobs")
DTYPES |= {f"return_{name}": np.bool_ for name in FLAGS}


@dataclass(frozen=True, slots=True)
class Chunk:
    """One response: its outputs as Python values, whether it carried FINAL, and when it came (monotonic seconds)."""

    outputs: dict[str, Any]
    final: bool
    at: float


class StreamError(Exception):
    """An error that Triton answered with. A stream carries its message only, no status code.

    (With `triton_grpc_error: true` in the call's metadata it would carry one, but Triton 2.51 then mixes up the states
    of its streams and dies of it within a few dozen requests.)
    """


class GrpcStream:
    """A channel that answers one request per call; errors raise StreamError, a broken server grpc.RpcError."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def send(self, request: Any, timeout: float = 120) -> Any:
        """The raw gRPC call, an iterator of responses with .cancel()."""
        return self._stub.ModelStreamInfer(iter([request]), timeout=timeout)

    def call(self, model: str, inputs: dict[str, Any], parameters: dict[str, Any] | None = None, **rest: Any) -> Any:
        """The raw gRPC call; rest: request_id, outputs."""
        return self.send(request_of(model, inputs, parameters, **rest))

    def stream(
        self, model: str, inputs: dict[str, Any], parameters: dict[str, Any] | None = None, **rest: Any
    ) -> Iterator[Chunk]:
        """The responses as chunks."""
        yield from chunks_of(self.call(model, inputs, parameters, **rest))


def request_of(model: str, inputs: dict[str, Any], parameters: dict[str, Any] | None = None, **rest: Any) -> Any:
    """The ModelInferRequest; an input is a numpy array, or a value in the contract's datatype and shape."""
    request = service_pb2.ModelInferRequest(model_name=model, id=rest.get("request_id", ""))
    for name, value in inputs.items():
        given = isinstance(value, np.ndarray)
        array = value if given else np.atleast_1d(np.array(value, dtype=DTYPES.get(name, object)))
        tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        request.inputs.append(tensor._get_tensor())
        request.raw_input_contents.append(tensor._get_content())
    for key, value in (parameters or {}).items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        setattr(request.parameters[key], kind, value)
    for name in rest.get("outputs", ()):
        request.outputs.add().name = name
    return request


def chunks_of(call: Any) -> Iterator[Chunk]:
    """The responses of a call as chunks.

    An error is raised once the call has ended: Triton 2.51 keeps the request of a stream for ever that is left after
    its error, or cancelled after its last response, and can then neither unload the model nor stop in time.
    """
    for response in call:
        if response.error_message:
            for _ in call:
                pass
            raise StreamError(response.error_message)
        message = response.infer_response
        result = InferResult(message)
        outputs = {o.name: python_value(o.name, result.as_numpy(o.name)) for o in message.outputs}
        yield Chunk(outputs, message.parameters["triton_final_response"].bool_param, monotonic())


def python_value(name: str, array: np.ndarray) -> Any:
    """output_ids is a list; every other output has one element."""
    values = [v.decode() if isinstance(v, bytes) else v for v in array.tolist()]
    return values if name == "output_ids" else values[0]
