"""Where is the server, and how is it spoken to? From one URL."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

_PORTS = {"grpc": 8001, "grpcs": 443, "http": 8000, "https": 443}
_METRICS_PORT = 8002


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The parts of a server's URL; the port is Triton's usual one, or 443, where the URL has none.

    path: what a proxy puts before Triton's own paths, over HTTP.

    >>> Endpoint.parse("grpc://localhost").target
    'localhost:8001'
    >>> Endpoint.parse("https://example.org/triton").http_url
    'https://example.org:443/triton'
    """

    scheme: str
    host: str
    port: int
    path: str = ""

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """ValueError where it is none of grpc://, grpcs://, http:// and https://."""
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"the URL must be {'://…, '.join(_PORTS)}://…, got {url!r}")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("the URL must have no user, password, query or fragment: credentials go into the headers")
        if parts.path.strip("/") and parts.scheme.startswith("grpc"):
            raise ValueError(f"a gRPC URL has no path, got {parts.path!r}")
        return cls(parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme], parts.path.rstrip("/"))

    @property
    def is_grpc(self) -> bool:
        """Whether gRPC is spoken."""
        return self.scheme.startswith("grpc")

    @property
    def is_secure(self) -> bool:
        """Whether TLS is spoken."""
        return self.scheme.endswith("s")

    @property
    def target(self) -> str:
        """`host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def http_url(self) -> str:
        """The base of HTTP paths."""
        return f"{self.scheme}://{self.target}{self.path}"

    @property
    def metrics_url(self) -> str:
        """Where Triton shows its metrics if nobody says otherwise: on a port of its own, without TLS."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{_METRICS_PORT}/metrics"
