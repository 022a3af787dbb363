"""How is a request written for /generate_stream, and an event of its answer read?"""

from __future__ import annotations

import json
from typing import Any

from swift_client.core.errors import ProtocolError
from swift_client.core.request import InferRequest, Question, Response

_QUESTIONS = {
    "live": "/v2/health/live",
    "ready": "/v2/health/ready",
    "model_ready": "/v2/models/{model}/ready",
    "server": "/v2",
    "model": "/v2/models/{model}",
    "metrics": "",
}


def infer_path(request: InferRequest) -> str:
    """Where to POST it. Always the stream: Triton never notices when the client of /generate has left."""
    return f"/v2/models/{request.model}/generate_stream"


def infer_body(request: InferRequest) -> bytes:
    """Inputs and id at the top level; the id reaches the model as the request's."""
    return json.dumps({**request.inputs, "id": request.request_id}).encode()


def question_path(question: Question) -> str:
    """What to GET; the metrics page is the whole of its URL."""
    return _QUESTIONS[question.about].format(model=question.model)


def read_event(data: str) -> Response:
    """One event's data; a tensor of one element has lost its brackets on the way."""
    try:
        outputs = json.loads(data)
    except ValueError:
        raise ProtocolError(f"the server sent something else than JSON: {data:.80}") from None
    if not isinstance(outputs, dict):
        raise ProtocolError(f"the server sent something else than an object: {data:.80}")
    if "error" in outputs:
        return Response(error=str(outputs["error"]) or "an error without a message")
    token_ids = outputs.get("output_ids")
    if isinstance(token_ids, int):
        outputs["output_ids"] = [token_ids]
    return Response(outputs)


def read_answer(question: Question, status: int, body: str) -> Response:
    """The answer to a question: {"ready": bool}, {"text": page}, or the JSON that the server gives."""
    if question.about in ("live", "ready", "model_ready"):
        return Response({"ready": status == 200}, final=True)
    if question.about == "metrics":
        return Response({"text": body}, final=True)
    try:
        answer: Any = json.loads(body)
    except ValueError:
        raise ProtocolError(f"the server sent something else than JSON: {body:.80}") from None
    if not isinstance(answer, dict):
        raise ProtocolError(f"the server sent something else than an object: {body:.80}")
    return Response(answer, final=True)
