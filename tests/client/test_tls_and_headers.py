"""TLS both ways, and headers, over gRPC and HTTP."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from swift_client import TLS, ConnectionFailed, Retry

from tests.client.conftest import Backend
from tests.client.drivers import Driver
from tests.client.wire_servers import Behaviour, GrpcServer, HttpServer


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of localhost, signed by itself: both an authority and a certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not there")
    folder = tmp_path_factory.mktemp("tls")
    key, own = folder / "key.pem", folder / "own.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(own)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    return key, own


@pytest.fixture(params=[False, True], ids=["plain", "mutual"])
def secure_url(request: pytest.FixtureRequest, protocol: str, certificate: tuple[Path, Path]) -> Iterator[str]:
    key, own = certificate
    server: GrpcServer | HttpServer
    if protocol == "grpc":
        pair, authority = (key.read_bytes(), own.read_bytes()), own.read_bytes() if request.param else None
        server = GrpcServer(Behaviour(), grpc.ssl_server_credentials([pair], authority, request.param))
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own, key)
        if request.param:
            context.load_verify_locations(own)
            context.verify_mode = ssl.CERT_REQUIRED
        server = HttpServer(Behaviour(), context)
    yield server.url
    server.close()


def test_an_authority_of_our_own(secure_url: str, kind: str, certificate: tuple[Path, Path]) -> None:
    key, own = certificate
    with Driver(kind, secure_url, tls=TLS(ca=own, certificate=own, key=key)) as driver:
        assert driver.generate("x").text == "a"


def test_a_stranger_is_not_trusted(secure_url: str, kind: str) -> None:
    with Driver(kind, secure_url, retry=Retry(limit=0)) as driver, pytest.raises(ConnectionFailed):
        driver.generate("x")


@pytest.mark.parametrize("secure_url", [False], indirect=True)
def test_over_https_anybody_may_be_trusted(secure_url: str, kind: str, protocol: str) -> None:
    if protocol == "grpc":
        with pytest.raises(ValueError, match="gRPC always verifies the server"):
            Driver(kind, secure_url, tls=TLS(verify=False))
        return
    with Driver(kind, secure_url, tls=TLS(verify=False)) as driver:
        assert driver.generate("x").text == "a"


def test_headers_go_along_with_every_request(wire: Backend, kind: str) -> None:
    assert wire.behaviour is not None
    driver = wire.driver(kind, headers={"Authorization": "Bearer x"})
    driver.generate("x")
    driver.call("cancel", "r")
    assert [headers["authorization"] for headers in wire.behaviour.headers] == ["Bearer x"] * 2
    assert all("triton_grpc_error" not in headers for headers in wire.behaviour.headers)
