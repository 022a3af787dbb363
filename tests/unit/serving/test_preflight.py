import os
import socket
from types import SimpleNamespace

import pytest

from swift_backend.serving.endpoints import Endpoints, free_endpoints
from swift_backend.serving.launch_error import LaunchError
from swift_backend.serving.preflight import check_ports, check_repository, check_shared_memory

MIB = 2**20


@pytest.fixture
def listening():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def with_port(kind: str, port: int, host: str = "127.0.0.1") -> Endpoints:
    free = free_endpoints()
    ports = {"http_port": free.http_port, "grpc_port": free.grpc_port, "metrics_port": free.metrics_port}
    return Endpoints(host, **{**ports, f"{kind}_port": port})


def test_free_ports_pass():
    check_ports(free_endpoints())


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("kind", ["http", "grpc", "metrics"])
def test_a_taken_port_is_named_with_the_way_out(listening, kind, host):
    with pytest.raises(LaunchError) as caught:
        check_ports(with_port(kind, listening, host))
    assert str(caught.value) == (
        f"The {kind} port {listening} is taken by another process. "
        f"Choose another: make serve {kind.upper()}_PORT=…, or --{kind}-port …"
    )


def test_a_connection_that_lingers_does_not_count():
    """The side that closes first keeps its port in TIME_WAIT for a minute: a restart must not wait for that."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()
    check_ports(with_port("http", port))


def test_one_port_for_two_uses():
    at = free_endpoints()
    with pytest.raises(LaunchError, match=f"^Port {at.http_port} is named for http and for metrics"):
        check_ports(Endpoints(at.host, at.http_port, at.grpc_port, at.http_port))


def test_a_host_of_another_machine():
    with pytest.raises(LaunchError, match="^The host 203.0.113.1 is not an address of this machine"):
        check_ports(with_port("http", 18000, "203.0.113.1"))


def test_a_port_for_root_only(monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(LaunchError, match="^The http port 80 is reserved for root"):
        check_ports(Endpoints("127.0.0.1", 80, 8001, 8002))


def with_room(monkeypatch, free_bytes: int) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free_bytes // 4096, f_frsize=4096))


def test_shared_memory_of_a_plain_container_is_enough(monkeypatch):
    with_room(monkeypatch, 64 * MIB)
    check_shared_memory()


def test_small_shared_memory(monkeypatch, tmp_path):
    with_room(monkeypatch, 64 * MIB - 4096)
    with pytest.raises(LaunchError, match="has 63 MiB free and Triton needs 64.*--shm-size=1g"):
        check_shared_memory(tmp_path)


def test_no_shared_memory(tmp_path):
    with pytest.raises(LaunchError, match="^There is no shared memory at .*/nowhere"):
        check_shared_memory(tmp_path / "nowhere")


def test_a_repository_that_is_not_there(tmp_path):
    with pytest.raises(LaunchError, match="/nowhere does not exist. Name one with --model-repository"):
        check_repository(tmp_path / "nowhere")


def test_a_repository_without_models(tmp_path):
    with pytest.raises(LaunchError, match="holds no model"):
        check_repository(tmp_path)
    (tmp_path / "swift").mkdir()
    (tmp_path / "swift" / "config.pbtxt").touch()
    check_repository(tmp_path)
