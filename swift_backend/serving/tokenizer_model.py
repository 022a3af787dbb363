"""The life cycle of `swift_tokenizer`: a text or chat messages in, the model's token ids out."""

from __future__ import annotations

import traceback
from typing import Any

import triton_python_backend_utils as pb_utils

from swift_backend.config import EngineConfig, resolve_dtype, stored_dtype
from swift_backend.errors import InvalidRequest, SwiftError
from swift_backend.model.checkpoint import resolve_model
from swift_backend.model.config import read_config
from swift_backend.serving.answer import input_id_arrays
from swift_backend.serving.guardian import guard_this_stub
from swift_backend.serving.refusals import Refusals
from swift_backend.serving.tensors import read_prompt
from swift_backend.serving.triton_errors import outcome_of, printable, triton_error
from swift_backend.serving.triton_request import TritonRequest, engine_options, inference_response
from swift_backend.text.tokenizer import Tokenizer


class TritonPythonModel:
    """What Triton's Python backend calls; several instances may run, each in a process of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer and the config, no weights; TritonModelException says in one sentence why that failed."""
        try:
            config = EngineConfig.from_sources(engine_options(args))
            dtype = stored_dtype(resolve_dtype(config.dtype))
            directory = resolve_model(config.model, dtype, progress=pb_utils.Logger.log_info)
            self._tokenizer = Tokenizer.load(directory)
            self._model = read_config(directory)
            self._refusals = Refusals(enabled=config.metrics)
            self._guardian = guard_this_stub(args["model_name"]) if config.exit_on_failure else None
        except SwiftError as error:
            raise pb_utils.TritonModelException(printable(str(error))) from None

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order; a wrong request gets an error of its own."""
        return [self._respond(request) for request in requests]

    def finalize(self) -> None:
        """End in peace."""
        if self._guardian is not None:
            self._guardian.goodbye()

    def _respond(self, request: Any) -> pb_utils.InferenceResponse:
        inputs, label = TritonRequest(request), "''"
        try:
            label = repr(inputs.client_id())
            return inference_response(input_id_arrays(self._encode(inputs)))
        except Exception as error:  # raised from execute it would end the other requests of this call too
            if not isinstance(error, SwiftError):
                pb_utils.Logger.log_error(printable(f"request {label}: {traceback.format_exc().rstrip()}"))
            self._refusals.count(outcome_of(error))
            return pb_utils.InferenceResponse(error=triton_error(error, label))

    def _encode(self, inputs: TritonRequest) -> list[int]:
        prompt = read_prompt(inputs)
        if isinstance(prompt, str):
            field, token_ids = "text_input", self._tokenizer.encode(prompt)
        else:
            field, token_ids = "messages", self._tokenizer.encode_chat(prompt)
        self._check(field, token_ids)
        return token_ids

    def _check(self, field: str, token_ids: list[int]) -> None:
        """The engine checks ids too, but cannot know what the client calls them."""
        limit, vocab_size = self._model.context_length - 1, self._model.vocab_size
        if not token_ids:
            raise InvalidRequest(field, f"{field} gives no tokens at all")
        if len(token_ids) > limit:
            raise InvalidRequest(field, f"{field} must be at most {limit} tokens long, got {len(token_ids)}")
        if max(token_ids) >= vocab_size:
            allowed = f"whose ids are in [0, {vocab_size - 1}]"
            raise InvalidRequest(field, f"{field} must consist of tokens {allowed}, got {max(token_ids)}")
