"""What is sent? One request, before it is bytes of this or that protocol."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from swift_client.core.errors import InvalidRequest
from swift_client.core.sampling import sampling_values

Value = str | bool | list[int]


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A streamed request to a model; inputs by their names in the contract."""

    model: str
    inputs: Mapping[str, Value]
    request_id: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the server itself; model: whom it is about, where it is about one."""

    about: Literal["live", "ready", "model_ready", "server", "model", "metrics"]
    model: str = ""


Request = InferRequest | Question


def id_of(request: Request) -> str:
    """ "" for a question."""
    return request.request_id if isinstance(request, InferRequest) else ""


@dataclass(frozen=True, slots=True)
class Response:
    """One answer: outputs as plain Python values, by name.

    final: whether the protocol says that it is the last one. error: what the server says instead of outputs.
    """

    outputs: Mapping[str, Any] = field(default_factory=dict)
    final: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Models:
    """The names of the two models that a client talks to: the public door, and the engine behind it.

    >>> Models(door="swift_fr").names
    ('swift_fr', 'swift_decoder')
    """

    door: str = "swift"
    decoder: str = "swift_decoder"

    @property
    def names(self) -> tuple[str, str]:
        """Both."""
        return self.door, self.decoder


def build_request(models: Models, prompt: str | None, options: Mapping[str, Any]) -> InferRequest:
    """The request of a generation; InvalidRequest where there is not exactly one prompt."""
    request_id = options.get("request_id") or str(uuid.uuid4())
    model, inputs = _prompt(models, prompt, options, request_id)
    inputs["stream"] = True
    if not options.get("exclude_input_in_output", True):
        inputs["exclude_input_in_output"] = False
    if values := sampling_values(options):
        try:
            inputs["sampling_parameters"] = json.dumps(values)
        except (TypeError, ValueError) as error:
            field = _culprit(values)
            raise InvalidRequest(f"{field} must be JSON: {error}", field=field, request_id=request_id) from None
    return InferRequest(model, inputs, request_id)


def stop_request(models: Models, request_id: str) -> InferRequest:
    """The control that withdraws a request, waiting or running, through whichever model it came."""
    return InferRequest(models.decoder, {"stop": True}, request_id)


def _prompt(
    models: Models, prompt: str | None, options: Mapping[str, Any], request_id: str
) -> tuple[str, dict[str, Value]]:
    messages, input_ids = options.get("messages"), options.get("input_ids")
    given = [one for one in (prompt, messages, input_ids) if one is not None]
    if len(given) != 1:
        message = f"exactly one of a prompt, messages and input_ids must be given, got {len(given)}"
        raise InvalidRequest(message, field="text_input", request_id=request_id)
    if input_ids is not None:
        return models.decoder, {"input_ids": [int(token) for token in input_ids]}
    if messages is not None:
        return models.door, {"messages": json.dumps([dict(message) for message in messages], ensure_ascii=False)}
    return models.door, {"text_input": str(prompt)}


def _culprit(values: Mapping[str, Any]) -> str:
    for name, value in values.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            return name
    return "sampling_parameters"
