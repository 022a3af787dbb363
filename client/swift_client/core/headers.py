"""Which headers may go along with every request?"""

from __future__ import annotations

from collections.abc import Mapping

# With it, Triton 2.51 mixes up the states of its streams and dies of that within a few dozen requests.
_DEADLY = "triton_grpc_error"


def checked_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Names in lower case, as gRPC wants them; ValueError for the one that kills the server."""
    lower = {name.lower(): value for name, value in (headers or {}).items()}
    if _DEADLY in (name.replace("-", "_") for name in lower):
        raise ValueError(f"the header {_DEADLY} must not be sent: the server may die of it")
    return lower
