"""How is a request written as Triton's protobuf message, and a message of its answer read?

Read by hand: numpy and tritonclient's InferResult take longer for a chunk than all else that the client does.
"""

from __future__ import annotations

import struct
from typing import Any

from tritonclient.grpc import service_pb2

from swift_client.core.errors import ProtocolError
from swift_client.core.request import InferRequest, Question, Response, Value

_QUESTIONS = {
    "live": ("ServerLive", "ServerLiveRequest"),
    "ready": ("ServerReady", "ServerReadyRequest"),
    "model_ready": ("ModelReady", "ModelReadyRequest"),
    "server": ("ServerMetadata", "ServerMetadataRequest"),
    "model": ("ModelMetadata", "ModelMetadataRequest"),
}
_FORMATS = {"INT32": "i", "UINT32": "I", "INT64": "q", "UINT64": "Q", "FP32": "f", "FP64": "d", "BOOL": "?"}
_LENGTH = struct.Struct("<I")


def infer_message(request: InferRequest) -> Any:
    """A ModelInferRequest."""
    message = service_pb2.ModelInferRequest(model_name=request.model, id=request.request_id)
    # An empty FINAL of its own is shown only to those who ask; ours rides on data, another server's may not.
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, value in request.inputs.items():
        datatype, shape, content = _tensor(value)
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(content)
    return message


def read_message(message: Any) -> Response:
    """A ModelStreamInferResponse; ProtocolError where its tensors are not what they say."""
    answer = message.infer_response
    final = "triton_final_response" in answer.parameters and answer.parameters["triton_final_response"].bool_param
    if message.error_message:
        return Response(final=final, error=message.error_message)
    raw = answer.raw_output_contents
    if len(raw) != len(answer.outputs):
        raise ProtocolError(f"{len(answer.outputs)} outputs came with {len(raw)} contents")
    outputs = {
        output.name: _value(output.name, output.datatype, content)
        for output, content in zip(answer.outputs, raw, strict=True)
    }
    return Response(outputs, final)


def question_call(question: Question) -> tuple[str, Any]:
    """The unary method that a question goes to, and its message."""
    method, kind = _QUESTIONS[question.about]
    message = getattr(service_pb2, kind)()
    if question.model:
        message.name = question.model
    return method, message


def read_answer(question: Question, message: Any) -> Response:
    """As core.http_body.read_answer gives it."""
    if question.about in ("live", "ready", "model_ready"):
        return Response({"ready": message.live if question.about == "live" else message.ready}, final=True)
    if question.about == "server":
        facts: dict[str, Any] = {"extensions": list(message.extensions)}
        return Response({"name": message.name, "version": message.version, **facts}, final=True)
    tensors = {
        side: [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in getattr(message, side)]
        for side in ("inputs", "outputs")
    }
    model = {"name": message.name, "platform": message.platform, "versions": list(message.versions)}
    return Response({**model, **tensors}, final=True)


def _tensor(value: Value) -> tuple[str, list[int], bytes]:
    if isinstance(value, bool):
        return "BOOL", [1], struct.pack("<?", value)
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return "BYTES", [1], _LENGTH.pack(len(text)) + text
    return "INT32", [len(value)], struct.pack(f"<{len(value)}i", *value)


def _value(name: str, datatype: str, content: bytes) -> Any:
    """output_ids is a list; every other output has one element."""
    try:
        if datatype == "BYTES":
            return content[4 : 4 + _LENGTH.unpack_from(content)[0]].decode()
        letter = _FORMATS[datatype]
        values = struct.unpack(f"<{len(content) // struct.calcsize(letter)}{letter}", content)
        return list(values) if name == "output_ids" else values[0]
    except (struct.error, KeyError, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{name} is no {datatype} of one element: {error!r}") from None
