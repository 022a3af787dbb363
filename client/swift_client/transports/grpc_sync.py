"""gRPC with plain calls: one channel, a call for each stream."""

from __future__ import annotations

from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from swift_client.core import grpc_message
from swift_client.core.errors import Cancelled
from swift_client.core.request import Question, Request, Response
from swift_client.transports.answered import Answered
from swift_client.transports.grpc_channel import channel_credentials, channel_options, error_of
from swift_client.transports.http_sync import HttpTransport
from swift_client.transports.protocol import Exchange, Limits, Settings


class GrpcTransport:
    """Triton's generated stub: unlike tritonclient's client, it has any number of streams at a time."""

    def __init__(self, settings: Settings) -> None:
        endpoint, options = settings.endpoint, channel_options(settings)
        if endpoint.is_secure:
            self._channel = grpc.secure_channel(endpoint.target, channel_credentials(settings.tls), options)
        else:
            self._channel = grpc.insecure_channel(endpoint.target, options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metadata = tuple(settings.headers.items())
        self._pages = HttpTransport(settings)

    def open(self, request: Request, limits: Limits) -> Exchange:
        try:
            if isinstance(request, Question):
                return self._ask(request, limits)
            message = grpc_message.infer_message(request)
            return _Exchange(self._stub.ModelStreamInfer(iter((message,)), metadata=self._metadata))
        except grpc.RpcError as error:
            raise error_of(error) from None
        except ValueError:  # of a closed channel
            raise Cancelled("the client is closed") from None

    def close(self) -> None:
        self._channel.close()
        self._pages.close()

    def _ask(self, question: Question, limits: Limits) -> Exchange:
        if question.about == "metrics":
            return self._pages.open(question, limits)
        method, message = grpc_message.question_call(question)
        answer = getattr(self._stub, method)(message, metadata=self._metadata)
        return Answered(grpc_message.read_answer(question, answer))


class _Exchange:
    """A call; gRPC fetches a response when it is asked for one, and holds back the server after some kilobytes."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def receive(self) -> Response | None:
        try:
            return grpc_message.read_message(next(self._call))
        except StopIteration:
            return None
        except grpc.RpcError as error:
            raise error_of(error) from None

    def abort(self) -> None:
        self._call.cancel()

    def close(self) -> None:
        self._call.cancel()
