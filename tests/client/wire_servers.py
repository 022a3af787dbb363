"""Small servers in this process that speak Triton's gRPC and HTTP as a script says, also as no Triton would."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from swift_client import Pause, fake_response
from swift_client.core.request import Response
from tritonclient.grpc import service_pb2, service_pb2_grpc

METRICS = "# HELP\nswift_running_requests 3\nnv_other 1\n"


@dataclass(frozen=True)
class Break:
    """The connection breaks."""


@dataclass(frozen=True)
class Status:
    """Over gRPC the call ends with a code, over HTTP the answer has a status."""

    code: str
    status: int
    body: str = ""
    content_type: str = "application/json"


@dataclass(frozen=True)
class Raw:
    """Bytes of an HTTP body, or an answer over gRPC whose only output is wrong."""

    data: bytes


Step = Response | Pause | Break | Status | Raw


@dataclass
class Behaviour:
    """The n-th request gets the n-th answer, later ones the last; `stop` ends an answer unless it is deaf."""

    answers: list[Sequence[Step]] = field(default_factory=lambda: [[fake_response("a", [1], "stop")]])
    deaf: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    cancelled_calls: int = 0
    sent: int = 0
    _stopped: dict[str, threading.Event] = field(default_factory=dict)

    def play(self, model: str, request_id: str, inputs: Mapping[str, Any]) -> Iterator[Step]:
        if inputs.get("stop"):
            self.stops.append(request_id)
            known = self._stopped.get(request_id)
            if known is not None and not self.deaf:
                known.set()
            yield Response({"cancelled": known is not None}, final=True)
            return
        steps = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append({"model": model, "id": request_id, **inputs})
        stopped = self._stopped.setdefault(request_id, threading.Event())
        try:
            for step in steps:
                if isinstance(step, Pause):
                    stopped.wait(step.seconds)
                if stopped.is_set():
                    yield fake_response(finish_reason="cancelled")
                    return
                if not isinstance(step, Pause):
                    yield step
                    self.sent += 1
        finally:
            self._stopped.pop(request_id, None)


class GrpcServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """On a free port of this machine."""

    def __init__(self, behaviour: Behaviour, credentials: Any = None) -> None:
        self._behaviour = behaviour
        self._server = grpc.server(
            ThreadPoolExecutor(80, thread_name_prefix="wire"), options=[("grpc.so_reuseport", 0)]
        )
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        address = "localhost:0"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        self._server.start()
        self.url = f"{'grpc' if credentials is None else 'grpcs'}://localhost:{self.port}"

    def close(self) -> None:
        self._server.stop(0.2).wait(10)

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        behaviour = self._behaviour
        behaviour.headers.append({key: value for key, value in context.invocation_metadata()})
        ended = threading.Event()

        def gone() -> None:
            if not ended.is_set():
                behaviour.cancelled_calls += 1

        context.add_callback(gone)
        for request in requests:
            for step in behaviour.play(request.model_name, request.id, grpc_inputs(request)):
                if not context.is_active():
                    return
                if isinstance(step, Break):
                    ended.set()
                    context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
                if isinstance(step, Status):
                    ended.set()
                    context.abort(grpc.StatusCode[step.code], step.body)
                yield grpc_answer(step)
        ended.set()

    def ServerLive(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=request.name == "swift")

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="triton", version="2.51.0", extensions=["parameters"])

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        tensor = service_pb2.ModelMetadataResponse.TensorMetadata(name="input_ids", datatype="INT32", shape=[-1])
        return service_pb2.ModelMetadataResponse(
            name=request.name, platform="ensemble", versions=["1"], inputs=[tensor]
        )


def grpc_inputs(request: Any) -> dict[str, Any]:
    """The inputs as plain values."""
    values: dict[str, Any] = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if tensor.datatype == "BYTES":
            values[tensor.name] = raw[4:].decode()
        elif tensor.datatype == "BOOL":
            values[tensor.name] = raw != b"\0"
        else:
            values[tensor.name] = list(struct.unpack(f"<{len(raw) // 4}i", raw))
    return values


KINDS = {
    "output_ids": ("INT32", "i"), "num_input_tokens": ("UINT32", "I"), "num_output_tokens": ("UINT32", "I"),
    "cumulative_logprob": ("FP32", "f"), "acceptance_rate": ("FP32", "f"), "cancelled": ("BOOL", "?"),
    "total_draft_tokens": ("INT32", "i"), "total_accepted_draft_tokens": ("INT32", "i"),
}  # fmt: skip


def grpc_answer(step: Response | Raw) -> Any:
    """A step as Triton's message."""
    answer = service_pb2.ModelStreamInferResponse()
    message = answer.infer_response
    if isinstance(step, Raw):
        message.outputs.add(name="finish_reason", datatype="BYTES", shape=[1])
        message.raw_output_contents.append(b"\1")
        return answer
    answer.error_message = step.error
    message.parameters["triton_final_response"].bool_param = step.final
    for name, value in step.outputs.items():
        datatype, letter = KINDS.get(name, ("BYTES", ""))
        if letter:
            values = value if isinstance(value, list) else [value]
            raw = struct.pack(f"<{len(values)}{letter}", *values)
        else:
            raw = struct.pack("<I", len(value.encode())) + value.encode()
        message.outputs.add(name=name, datatype=datatype, shape=[1])
        message.raw_output_contents.append(raw)
    return answer


class HttpServer:
    """On a free port of this machine; one thread for each connection."""

    def __init__(self, behaviour: Behaviour, context: Any = None) -> None:
        class Handler(_Handler):
            its = behaviour

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that leaves is nothing to talk about."""

        self._server = Server(("localhost", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"{'http' if context is None else 'https'}://localhost:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    its: Behaviour

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._whole(200, METRICS, "text/plain")
        elif "/ready" in self.path or "/live" in self.path:
            self._whole(400 if "swift_decoder" in self.path else 200, "", "text/plain")
        elif self.path == "/v2":
            self._whole(200, json.dumps({"name": "triton", "version": "2.51.0", "extensions": ["parameters"]}))
        else:
            tensor = {"name": "input_ids", "datatype": "INT32", "shape": [-1]}
            name = self.path.split("/")[3]
            facts = {"name": name, "platform": "ensemble", "versions": ["1"], "inputs": [tensor], "outputs": []}
            self._whole(200, json.dumps(facts))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.its.headers.append({name.lower(): value for name, value in self.headers.items()})
        started, request_id = False, body.pop("id")
        for step in self.its.play(self.path.split("/")[3], request_id, body):
            if isinstance(step, Break):
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if isinstance(step, Status):
                self._whole(step.status, step.body, step.content_type)
                return
            if not started:
                self._head(400 if isinstance(step, Response) and step.error else 200, "text/event-stream")
                started = True
            if not self._send(step.data if isinstance(step, Raw) else event(step)):
                return
        if not started:
            self._head(200, "text/event-stream")
        self._send(b"", last=True)

    def _send(self, data: bytes, last: bool = False) -> bool:
        try:
            if data:
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            if last:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.its.cancelled_calls += 1
            self.close_connection = True
            return False
        return True

    def _head(self, status: int, content_type: str) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _whole(self, status: int, body: str, content_type: str = "application/json") -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def event(step: Response) -> bytes:
    """A step as Triton's event; nothing of an empty response."""
    if step.error:
        return f"data: {json.dumps({'error': step.error})}\n\n".encode()
    if not step.outputs:
        return b""
    outputs = dict(step.outputs)
    ids = outputs.get("output_ids")
    if isinstance(ids, list) and len(ids) == 1:
        outputs["output_ids"] = ids[0]
    return f"data: {json.dumps({**outputs, 'model_name': 'swift'})}\n\n".encode()


def within(seconds: float, happened: Any) -> float:
    """Wait until it happened, and say after how many seconds."""
    started = time.monotonic()
    while not happened():
        assert time.monotonic() - started < seconds, f"did not happen within {seconds} s"
        time.sleep(0.005)
    return time.monotonic() - started
