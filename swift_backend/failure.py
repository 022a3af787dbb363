"""Which exceptions are one request's affair, and which are the engine's?"""

from __future__ import annotations

import torch

from swift_backend.errors import EngineFailure, RankFailure

# A CPU allocation that fails is a bare RuntimeError.
_NO_MEMORY = "DefaultCPUAllocator"
_DEVICE_ERRORS: tuple[type[Exception], ...] = (
    MemoryError,
    RankFailure,
    torch.OutOfMemoryError,
    getattr(torch, "AcceleratorError", torch.OutOfMemoryError),
)


def ends_engine(error: Exception) -> bool:
    """Whether nothing that computes can be relied on any more: memory is short, or a device has failed."""
    return isinstance(error, _DEVICE_ERRORS) or (isinstance(error, RuntimeError) and _NO_MEMORY in str(error))


def engine_failure(error: Exception) -> EngineFailure:
    """What the clients are told of an exception that ended the engine; ours speak for themselves."""
    if isinstance(error, RankFailure):
        return error
    return EngineFailure(f"the engine has failed ({type(error).__name__}); the server's log says more")


def request_failure(error: Exception) -> EngineFailure:
    """What the client is told of an exception in its own request; the cause goes to the log."""
    failure = EngineFailure(f"this request has failed ({type(error).__name__}); the server's log says more")
    failure.__cause__ = error
    return failure
