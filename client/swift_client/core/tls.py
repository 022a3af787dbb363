"""How is the server of a grpcs:// or https:// URL trusted, and who are we to it?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TLS:
    """ca: file of the authorities to trust, the system's if left out. certificate and key: our own, for mutual TLS.

    verify: False trusts anybody, over HTTPS only: gRPC cannot be told so.

    >>> TLS(ca="ca.pem").verify
    True
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key are given together, or neither")
