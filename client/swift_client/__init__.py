"""A typed client for SWIFT on Triton: sync and asyncio, gRPC and HTTP, with real cancellation."""

from swift_client.async_client import AsyncSwiftClient
from swift_client.async_stream import AsyncStream
from swift_client.core.errors import (
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    ProtocolError,
    QueueFull,
    ServerError,
    SwiftClientError,
    Unavailable,
)
from swift_client.core.metrics import Histogram, Metrics
from swift_client.core.request import Models
from swift_client.core.results import (
    Alternative,
    Chunk,
    Completion,
    FinishReason,
    SpeculationStats,
    Timing,
    TokenLogprob,
    Usage,
)
from swift_client.core.retry import Retry
from swift_client.core.sampling import CallOptions, GenerateOptions, Message, SamplingOptions
from swift_client.core.server_facts import Health, Metadata, ModelInfo, TensorInfo
from swift_client.core.timeout import USE_CLIENT_TIMEOUT, Timeout
from swift_client.core.tls import TLS
from swift_client.sync_client import SwiftClient
from swift_client.sync_stream import Stream
from swift_client.transports.fake import FakeTransport, Pause, fake_response

__all__ = [
    "TLS",
    "USE_CLIENT_TIMEOUT",
    "Alternative",
    "AsyncStream",
    "AsyncSwiftClient",
    "CallOptions",
    "Cancelled",
    "Chunk",
    "Completion",
    "ConnectionFailed",
    "DeadlineExceeded",
    "FakeTransport",
    "FinishReason",
    "GenerateOptions",
    "Health",
    "Histogram",
    "InvalidRequest",
    "Message",
    "Metadata",
    "Metrics",
    "ModelInfo",
    "Models",
    "Pause",
    "ProtocolError",
    "QueueFull",
    "Retry",
    "SamplingOptions",
    "ServerError",
    "SpeculationStats",
    "Stream",
    "SwiftClient",
    "SwiftClientError",
    "TensorInfo",
    "Timeout",
    "Timing",
    "TokenLogprob",
    "Unavailable",
    "Usage",
    "fake_response",
]
