"""What is an httpx client of ours made of, plain or on an event loop, and what do its errors mean?"""

from __future__ import annotations

import ssl
from typing import TypedDict

import httpx

from swift_client.core.error_map import error_of_http
from swift_client.core.errors import ConnectionFailed, ProtocolError, SwiftClientError
from swift_client.core.http_body import infer_body, infer_path, question_path
from swift_client.core.request import InferRequest, Question, Request
from swift_client.core.tls import TLS
from swift_client.transports.protocol import Limits, Settings

_BROKEN = ("disconnected", "peer closed", "closed connection", "connection was closed")


class ClientOptions(TypedDict):
    """What httpx.Client and httpx.AsyncClient take alike."""

    base_url: str
    verify: ssl.SSLContext | bool
    limits: httpx.Limits
    trust_env: bool


def client_options(settings: Settings) -> ClientOptions:
    """A stream has a connection to itself: as many as there are streams. No proxy that only the environment names."""
    endpoint = settings.endpoint
    return {
        "base_url": endpoint.http_url,
        "verify": _context(settings.tls) if endpoint.is_secure or settings.metrics_url.startswith("https") else False,
        "limits": httpx.Limits(max_connections=None),
        "trust_env": False,
    }


def build_request(
    client: httpx.Client | httpx.AsyncClient, settings: Settings, request: Request, limits: Limits
) -> httpx.Request:
    """Whoever waits for the answer has a clock of their own."""
    timeout = httpx.Timeout(None, connect=limits.connect)
    if isinstance(request, InferRequest):
        headers = {**settings.headers, "content-type": "application/json"}
        return client.build_request(
            "POST", infer_path(request), content=infer_body(request), headers=headers, timeout=timeout
        )
    if request.about == "metrics":
        return client.build_request(
            "GET", settings.metrics_url, headers=dict(settings.metrics_headers), timeout=timeout
        )
    return client.build_request("GET", question_path(request), headers=dict(settings.headers), timeout=timeout)


def check_answer(request: Request, response: httpx.Response) -> bool:
    """Whether its body is the answer; if not, it is read and given to `refusal`."""
    if isinstance(request, InferRequest):
        return response.status_code == httpx.codes.OK and "event-stream" in response.headers.get("content-type", "")
    return response.status_code == httpx.codes.OK or request.about in ("live", "ready", "model_ready")


def refusal(request: Request, response: httpx.Response) -> SwiftClientError:
    """The error that a response is whose body has been read."""
    if response.status_code == httpx.codes.OK:
        return ProtocolError(f"{response.request.url} answered with {response.headers.get('content-type', 'no type')}")
    if isinstance(request, Question) and request.about == "metrics":
        return ProtocolError(f"there is no metrics page at {response.request.url} (HTTP {response.status_code})")
    return error_of_http(response.status_code, response.text)


def error_of(error: Exception) -> SwiftClientError:
    """Any exception of httpx as one of ours."""
    said = str(error) or type(error).__name__
    if isinstance(error, httpx.RemoteProtocolError) and not any(word in said.lower() for word in _BROKEN):
        return ProtocolError(said)
    if isinstance(error, httpx.DecodingError | httpx.TooManyRedirects):
        return ProtocolError(said)
    return ConnectionFailed(said)


def _context(tls: TLS) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if tls.ca is None else str(tls.ca))
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return context
