"""The life cycle of `swift_tokenizer`: a text or chat messages in, the model's token ids out."""

from __future__ import annotations

import traceback
from typing import Any

import triton_python_backend_utils as pb_utils

from swift_backend.config import EngineConfig, resolve_dtype
from swift_backend.errors import InvalidRequest, SwiftError
from swift_backend.model.checkpoint import resolve_model
from swift_backend.serving.tensors import input_id_arrays, read_prompt
from swift_backend.serving.triton_errors import printable, triton_error
from swift_backend.serving.triton_request import TritonRequest, engine_options, inference_response
from swift_backend.text.tokenizer import Tokenizer


class TritonPythonModel:
    """What Triton's Python backend calls; several instances may run, each in a process of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer only; TritonModelException says in one sentence why that failed."""
        try:
            config = EngineConfig.from_sources(engine_options(args))
            directory = resolve_model(config.model, resolve_dtype(config.dtype), progress=pb_utils.Logger.log_info)
            self._tokenizer = Tokenizer.load(directory)
        except SwiftError as error:
            raise pb_utils.TritonModelException(printable(str(error))) from None

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order; a wrong request gets an error of its own."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> pb_utils.InferenceResponse:
        try:
            return inference_response(input_id_arrays(self._encode(TritonRequest(request))))
        except Exception as error:  # raised from execute it would end the other requests of this call too
            label = repr(request.request_id())
            if not isinstance(error, SwiftError):
                pb_utils.Logger.log_error(printable(f"request {label}: {traceback.format_exc().rstrip()}"))
            return pb_utils.InferenceResponse(error=triton_error(error, label))

    def _encode(self, inputs: TritonRequest) -> list[int]:
        prompt = read_prompt(inputs)
        if isinstance(prompt, str):
            field, token_ids = "text_input", self._tokenizer.encode(prompt)
        else:
            field, token_ids = "messages", self._tokenizer.encode_chat(prompt)
        if not token_ids:
            raise InvalidRequest(field, f"{field} gives no tokens at all")
        return token_ids
