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


@dataclass(frozen=True, slots=True)
class Chunk:
    """One response: its outputs as Python values, whether it carried FINAL, and when it came (monotonic seconds)."""

    outputs: dict[str, Any]
    final: bool
    at: float


class GrpcStream:
    """A channel that answers one request per call; errors raise grpc.RpcError with Triton's status code."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def call(self, model: str, inputs: dict[str, Any], parameters: dict[str, Any] | None = None, **rest: Any) -> Any:
        """The raw gRPC call, an iterator of responses with .cancel(); rest: request_id, outputs."""
        request = service_pb2.ModelInferRequest(model_name=model, id=rest.get("request_id", ""))
        for name, value in inputs.items():
            array = np.atleast_1d(np.array(value, dtype=DTYPES.get(name, object)))
            tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            request.inputs.append(tensor._get_tensor())
            request.raw_input_contents.append(tensor._get_content())
        for key, value in (parameters or {}).items():
            kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
            setattr(request.parameters[key], kind, value)
        for name in rest.get("outputs", ()):
            request.outputs.add().name = name
        metadata = (("triton_grpc_error", "true"),)
        return self._stub.ModelStreamInfer(iter([request]), timeout=120, metadata=metadata)

    def stream(
        self, model: str, inputs: dict[str, Any], parameters: dict[str, Any] | None = None, **rest: Any
    ) -> Iterator[Chunk]:
        """The responses as chunks."""
        for response in self.call(model, inputs, parameters, **rest):
            assert not response.error_message, response.error_message
            message = response.infer_response
            result = InferResult(message)
            outputs = {o.name: python_value(o.name, result.as_numpy(o.name)) for o in message.outputs}
            yield Chunk(outputs, message.parameters["triton_final_response"].bool_param, monotonic())


def python_value(name: str, array: np.ndarray) -> Any:
    """output_ids is a list; every other output has one element."""
    values = [v.decode() if isinstance(v, bytes) else v for v in array.tolist()]
    return values if name == "output_ids" else values[0]
