"""gRPC on an event loop: one channel, a call for each stream."""

from __future__ import annotations

from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from swift_client.core import grpc_message
from swift_client.core.request import Question, Request, Response
from swift_client.transports.answered import AsyncAnswered
from swift_client.transports.grpc_channel import channel_credentials, channel_options, error_of
from swift_client.transports.http_async import AsyncHttpTransport
from swift_client.transports.protocol import AsyncExchange, Limits, Settings


class AsyncGrpcTransport:
    """The channel belongs to the event loop on which it is first used, so it is made then."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._credentials = channel_credentials(settings.tls) if settings.endpoint.is_secure else None
        self._metadata = tuple(settings.headers.items())
        self._channel: Any = None
        self._stub: Any = None
        self._pages = AsyncHttpTransport(settings)

    async def open_async(self, request: Request, limits: Limits) -> AsyncExchange:
        self._connect()
        try:
            if isinstance(request, Question):
                return await self._ask(request, limits)
            message = grpc_message.infer_message(request)
            return _Exchange(self._stub.ModelStreamInfer(iter((message,)), metadata=self._metadata))
        except grpc.RpcError as error:
            raise error_of(error) from None

    async def close_async(self) -> None:
        if self._channel is not None:
            await self._channel.close()
        await self._pages.close_async()

    async def _ask(self, question: Question, limits: Limits) -> AsyncExchange:
        if question.about == "metrics":
            return await self._pages.open_async(question, limits)
        method, message = grpc_message.question_call(question)
        answer = await getattr(self._stub, method)(message, metadata=self._metadata)
        return AsyncAnswered(grpc_message.read_answer(question, answer))

    def _connect(self) -> None:
        if self._channel is not None:
            return
        target, options = self._settings.endpoint.target, channel_options(self._settings)
        if self._credentials is not None:
            self._channel = grpc.aio.secure_channel(target, self._credentials, options)
        else:
            self._channel = grpc.aio.insecure_channel(target, options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)


class _Exchange:
    def __init__(self, call: Any) -> None:
        self._call = call

    async def receive(self) -> Response | None:
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            raise error_of(error) from None
        return None if message is grpc.aio.EOF else grpc_message.read_message(message)

    async def close(self) -> None:
        self._call.cancel()
