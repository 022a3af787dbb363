"""What a client is told: its URL, headers, TLS, timeouts."""

from __future__ import annotations

import pytest
from swift_client import TLS, USE_CLIENT_TIMEOUT, Metadata, Metrics, ProtocolError, SwiftClient, Timeout
from swift_client.core.endpoint import Endpoint
from swift_client.core.headers import checked_headers
from swift_client.core.server_facts import read_metadata
from swift_client.core.timeout import as_timeout
from swift_client.transports.choice import settings_for


@pytest.mark.parametrize(
    ("url", "target", "grpc", "secure"),
    [
        ("grpc://h", "h:8001", True, False), ("grpcs://h", "h:443", True, True), ("http://h:9", "h:9", False, False),
        ("https://h/x/", "h:443", False, True), ("grpc://[::1]:7", "[::1]:7", True, False),
    ],
)  # fmt: skip
def test_urls(url: str, target: str, grpc: bool, secure: bool) -> None:
    endpoint = Endpoint.parse(url)
    assert (endpoint.target, endpoint.is_grpc, endpoint.is_secure) == (target, grpc, secure)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8001", "must be grpc://…"), ("ftp://h", "must be grpc://…"), ("grpc://", "must be grpc://…"),
        ("http://u:p@h", "credentials go into the headers"), ("grpc://h/path", "a gRPC URL has no path"),
        ("http://h?x=1", "credentials go into the headers"),
    ],
)  # fmt: skip
def test_urls_that_are_none(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SwiftClient(url)


def test_the_metrics_page_is_on_the_same_host_and_gets_no_credentials() -> None:
    settings = settings_for("grpcs://[::1]:9", {"Authorization": "x"}, None, None, None)
    assert (settings.metrics_url, settings.metrics_headers) == ("http://[::1]:8002/metrics", {})
    named = settings_for("grpcs://h", {"Authorization": "x"}, None, None, "https://h/metrics")
    assert (named.metrics_url, named.metrics_headers) == ("https://h/metrics", {"authorization": "x"})


@pytest.mark.parametrize("name", ["triton_grpc_error", "Triton_Grpc_Error", "TRITON-GRPC-ERROR"])
def test_the_header_that_kills_the_server_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the server may die of it"):
        SwiftClient(headers={name: "true"})
    assert checked_headers({"Authorization": "x"}) == {"authorization": "x"} and checked_headers(None) == {}


def test_tls() -> None:
    with pytest.raises(ValueError, match="certificate and key"):
        TLS(certificate="a.pem")
    with pytest.raises(ValueError, match="gRPC always verifies"):
        SwiftClient("grpcs://h", tls=TLS(verify=False))


def test_what_a_timeout_may_be() -> None:
    clients = Timeout(1, 2, 3, 4)
    assert as_timeout(USE_CLIENT_TIMEOUT, clients) is clients
    assert as_timeout(None, clients) == Timeout.unlimited()
    assert as_timeout(9, clients) == Timeout(1, 2, 3, 9)
    assert as_timeout(Timeout(), clients) == Timeout(5.0, 60.0, 30.0, None)


PAGE = """\
# HELP swift_requests_total …
swift_requests_total{outcome="length"} 3
swift_requests_total{outcome="stop"} 1
swift_draft_tokens_total{drafter="ngram"} 8
swift_draft_tokens_total{drafter="layer_skip"} 2
swift_accepted_draft_tokens_total{drafter="ngram"} 4
swift_generated_tokens_total 30
swift_rounds_total 20
swift_running_requests 2
swift_waiting_requests 1
swift_request_seconds_count 4
swift_request_seconds_sum 6
swift_request_seconds_bucket{le="1"} 1
swift_request_seconds_bucket{le="+Inf"} 4
nv_inference_count 12
"""


def test_the_figures_of_a_metrics_page() -> None:
    metrics = Metrics.parse(PAGE)
    assert metrics.requests == {"length": 3.0, "stop": 1.0}
    assert (metrics.running_requests, metrics.waiting_requests) == (2, 1)
    assert (metrics.draft_tokens, metrics.acceptance_rate) == ({"layer_skip": 2.0, "ngram": 8.0}, 0.4)
    assert metrics.accepted_draft_tokens == {"ngram": 4.0} and metrics.tokens_per_round == 1.5
    histogram = metrics.histogram("request_seconds")
    assert (histogram.mean, histogram.buckets) == (1.5, {1.0: 1.0, float("inf"): 4.0})
    empty = Metrics.parse("")
    assert (empty.acceptance_rate, empty.tokens_per_round, empty.histogram("x").mean) == (0, 0, 0)


@pytest.mark.parametrize("line", ["swift_x", "swift_x{a} b c d", "swift_x one"])
def test_a_page_that_is_none(line: str) -> None:
    with pytest.raises(ProtocolError, match="no line of a metrics page"):
        Metrics.parse(line)


def test_metadata_that_is_none() -> None:
    with pytest.raises(ProtocolError, match="not Triton's"):
        read_metadata({"name": "x"}, {})
    assert read_metadata({"name": "x", "version": "1", "extensions": []}, {}) == Metadata("x", "1", (), {})
