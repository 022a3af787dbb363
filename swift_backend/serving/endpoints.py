"""Where does the server listen, and how do clients on this machine reach it?"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The listening address and the three ports."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int

    @property
    def client_host(self) -> str:
        """The host to put in a URL here: "every address" becomes this machine's own."""
        host = _EVERY_ADDRESS.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host

    @property
    def http_url(self) -> str:
        """Base of the HTTP API, without a slash at the end."""
        return f"http://{self.client_host}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """The gRPC endpoint in the form that SwiftClient takes, with scheme."""
        return f"grpc://{self.grpc_target}"

    @property
    def grpc_target(self) -> str:
        """The gRPC endpoint in the form that tritonclient and grpc take, without scheme."""
        return f"{self.client_host}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """The page that Prometheus reads."""
        return f"http://{self.client_host}:{self.metrics_port}/metrics"


def free_endpoints(host: str = "127.0.0.1") -> Endpoints:
    """Three ports that are free now; another process may take one before it is used."""
    with contextlib.ExitStack() as stack:
        # All three stay open until the last is drawn, so that they differ.
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for item in sockets:
            item.bind((host, 0))
        http_port, grpc_port, metrics_port = (item.getsockname()[1] for item in sockets)
    return Endpoints(host, http_port, grpc_port, metrics_port)
