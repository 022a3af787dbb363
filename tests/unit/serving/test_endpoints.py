import pytest

from swift_backend.serving.endpoints import Endpoints, free_endpoints


def test_urls():
    at = Endpoints("10.0.0.7", 8000, 8001, 8002)
    assert at.http_url == "http://10.0.0.7:8000"
    assert at.grpc_url == "grpc://10.0.0.7:8001"
    assert at.grpc_target == "10.0.0.7:8001"
    assert at.metrics_url == "http://10.0.0.7:8002/metrics"


@pytest.mark.parametrize(
    ("host", "reached_at"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("localhost", "localhost")]
)
def test_every_address_is_reached_at_this_machine(host, reached_at):
    assert Endpoints(host, 1, 2, 3).http_url == f"http://{reached_at}:1"


def test_free_endpoints_differ():
    at = free_endpoints()
    assert at.host == "127.0.0.1"
    assert len({at.http_port, at.grpc_port, at.metrics_port}) == 3
