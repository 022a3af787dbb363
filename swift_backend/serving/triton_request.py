"""What does Triton hand us? The request and the model's config, seen through the few calls that we use."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils

from swift_backend.errors import InvalidRequest
from swift_backend.serving.tensors import Array

# Parameters in config.pbtxt that Triton's Python backend reads for itself.
PYTHON_BACKEND_OPTIONS = frozenset({"EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS"})


class TritonRequest:
    """tensors.Inputs over a pb_utils.InferenceRequest."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def array(self, name: str) -> Array | None:
        """The input tensor of this name, or None."""
        tensor = pb_utils.get_input_tensor_by_name(self._request, name)
        return None if tensor is None else tensor.as_numpy()

    def parameters(self) -> str:
        """The request parameters as JSON; InvalidRequest where one of them is not UTF-8."""
        return _text("parameters", self._request.parameters)

    def timeout_us(self) -> int:
        """Triton's own request timeout in microseconds, 0 where the client set none; over gRPC only."""
        return int(self._request.timeout())

    def client_id(self) -> str:
        """What the client calls its request, "" for nothing; InvalidRequest where that is not UTF-8."""
        return _text("id", self._request.request_id)


def engine_options(args: dict[str, str]) -> dict[str, str]:
    """The `parameters` of config.pbtxt that are ours, from the arguments of initialize."""
    parameters = json.loads(args["model_config"]).get("parameters", {})
    return {name: value["string_value"] for name, value in parameters.items() if name not in PYTHON_BACKEND_OPTIONS}


def inference_response(arrays: dict[str, Array]) -> pb_utils.InferenceResponse:
    """A response with one tensor per array."""
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items()])


def _text(name: str, ask: Callable[[], str]) -> str:
    """HTTP lets any bytes through to here, and pb_utils decodes them when they are asked for."""
    try:
        return ask()
    except UnicodeDecodeError as error:
        raise InvalidRequest(name, f"{name} is not valid UTF-8: {error.reason} at byte {error.start}") from None
