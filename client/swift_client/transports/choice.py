"""Which transport does a URL ask for?"""

from __future__ import annotations

from collections.abc import Mapping

from swift_client.core.endpoint import Endpoint
from swift_client.core.headers import checked_headers
from swift_client.core.tls import TLS
from swift_client.transports.protocol import AsyncTransport, Settings, Transport


def settings_for(
    url: str, headers: Mapping[str, str] | None, tls: TLS | None, connect: float | None, metrics_url: str | None
) -> Settings:
    """ValueError where one of them cannot be used; headers go to a metrics page only where that was named."""
    endpoint, checked = Endpoint.parse(url), checked_headers(headers)
    return Settings(
        endpoint, checked, tls or TLS(), connect, metrics_url or endpoint.metrics_url, checked if metrics_url else {}
    )


def transport_for(settings: Settings) -> Transport:
    """Plain calls. gRPC takes a quarter of a second to import: only for those who use it."""
    if settings.endpoint.is_grpc:
        from swift_client.transports.grpc_sync import GrpcTransport

        return GrpcTransport(settings)
    from swift_client.transports.http_sync import HttpTransport

    return HttpTransport(settings)


def async_transport_for(settings: Settings) -> AsyncTransport:
    """On an event loop."""
    if settings.endpoint.is_grpc:
        from swift_client.transports.grpc_async import AsyncGrpcTransport

        return AsyncGrpcTransport(settings)
    from swift_client.transports.http_async import AsyncHttpTransport

    return AsyncHttpTransport(settings)
