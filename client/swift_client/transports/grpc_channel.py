"""What is a gRPC channel of ours made of, plain or on an event loop?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from swift_client.core.error_map import error_of_grpc
from swift_client.core.errors import SwiftClientError
from swift_client.core.tls import TLS
from swift_client.transports.protocol import Settings

_AGAIN_MS, _AGAIN_AT_MOST_MS = 100, 1000


def channel_options(settings: Settings) -> list[tuple[str, int]]:
    """Answers of any size; a connection of our own, tried again soon; no proxy that only the environment names."""
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", _AGAIN_MS),
        ("grpc.max_reconnect_backoff_ms", _AGAIN_AT_MOST_MS),
    ]
    if settings.connect is not None:
        options.append(("grpc.min_reconnect_backoff_ms", max(_AGAIN_MS, int(settings.connect * 1000))))
    return options


def channel_credentials(tls: TLS) -> Any:
    """ValueError where gRPC cannot do what is asked."""
    if not tls.verify:
        raise ValueError("gRPC always verifies the server: give TLS(ca=…) its certificate instead of verify=False")
    ca, certificate, key = (
        None if path is None else Path(path).read_bytes() for path in (tls.ca, tls.certificate, tls.key)
    )
    return grpc.ssl_channel_credentials(ca, key, certificate)


def error_of(error: Any) -> SwiftClientError:
    """A grpc.RpcError as one of ours."""
    return error_of_grpc(error.code().name, error.details() or "")
