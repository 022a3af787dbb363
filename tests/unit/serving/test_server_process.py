import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from swift_backend.serving import server_process
from swift_backend.serving.launch_error import LaunchError
from swift_backend.serving.process_group import end_group, living_members
from swift_backend.serving.server_process import ServerProcess, running_server
from swift_backend.serving.stop_signals import stop_signals_interrupt


@pytest.fixture
def start(spec, tmp_path):
    started = []

    def start_with(*arguments: str, **changes) -> ServerProcess:
        changed = replace(spec, arguments=tuple(f"--{item}=1" for item in arguments), **changes)
        started.append(ServerProcess(changed, tmp_path / "triton.log"))
        started[-1].start()
        return started[-1]

    yield start_with
    for server in started:
        server.stop()


def regions(server: ServerProcess) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith(server.region_prefix)]


def assert_gone(server: ServerProcess) -> None:
    assert living_members(server.pid) == []
    assert regions(server) == []


def test_ready_then_stopped_without_a_trace(start):
    server = start(exit_timeout=10)
    server.wait_until_ready("swift", 20)
    assert len(living_members(server.pid)) == 2
    assert len(regions(server)) == 1
    begin = time.monotonic()
    server.stop()
    assert time.monotonic() - begin < 5
    assert_gone(server)
    log = server.log_path.read_text()
    assert "asked for /v2/health/ready" in log and "asked for /v2/models/swift/ready" in log


def test_without_a_model_only_the_server_is_asked(start):
    server = start()
    server.wait_until_ready(None, 20)
    assert "/v2/models" not in server.log_path.read_text()


def test_a_failed_start_shows_the_errors_of_the_log(start):
    server = start("fail")
    with pytest.raises(LaunchError) as caught:
        server.wait_until_ready("swift", 20)
    lines = str(caught.value).splitlines()
    assert lines[0] == "Triton could not start (exit code 3). Its log says:"
    assert "failed to load 'swift': No module named 'x'" in lines[1]
    assert lines[2:] == ["  At: model.py(1)", f"The whole log: {server.log_path}"]
    server.stop()
    assert_gone(server)


def test_a_start_that_takes_too_long(start):
    server = start("never-ready")
    looks: list[None] = []
    with pytest.raises(LaunchError, match="^Triton was not ready after 1 s"):
        server.wait_until_ready("swift", 1, lambda: looks.append(None))
    assert len(looks) >= 3


def test_a_death_is_noticed(start):
    server = start()
    server.wait_until_ready("swift", 20)
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(LaunchError, match=r"^Triton ended by itself \(signal 9\)"):
        server.wait_for_death()
    server.stop()
    assert_gone(server)


def test_a_server_that_does_not_listen_is_killed(start):
    server = start("deaf", exit_timeout=0.5)
    server.wait_until_ready("swift", 20)
    server.stop()
    assert_gone(server)


def test_an_interrupt_while_stopping_kills_at_once(start):
    server = start("deaf", exit_timeout=60)
    server.wait_until_ready("swift", 20)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), stop_signals_interrupt():
        server.stop()
    assert time.monotonic() - begin < 10
    timer.join()
    assert_gone(server)


def test_stopping_what_never_started(spec, tmp_path):
    server = ServerProcess(spec, tmp_path / "log")
    server.stop()
    with pytest.raises(LaunchError, match="was not started"):
        _ = server.pid


def test_the_server_is_asked_to_stop_when_its_starter_dies(spec, tmp_path):
    """Even SIGKILL, which no program can answer, ends the server with its launcher."""
    program = f"""
import sys, time
from pathlib import Path
from swift_backend.serving.endpoints import Endpoints
from swift_backend.serving.server_command import ServerSpec
from swift_backend.serving.server_process import ServerProcess
from swift_backend.serving.triton_install import TritonInstall
install = TritonInstall(Path({str(spec.install.server)!r}), Path("b"), ())
server = ServerProcess(ServerSpec(install, Path("r"), {spec.endpoints!r}), Path({str(tmp_path / "log")!r}))
server.start()
server.wait_until_ready("swift", 30)
print(server.pid, server.region_prefix, flush=True)
time.sleep(60)
"""
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid, prefix = starter.stdout.readline().split()
        assert int(pid) in living_members(int(pid))
        starter.kill()
    deadline = time.monotonic() + 10
    while int(pid) in living_members(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert int(pid) not in living_members(int(pid))
    # The stand-in's child and file stay: real stubs notice, and the real server cleans up when it is asked.
    end_group(int(pid))
    Path("/dev/shm", f"{prefix}region").unlink()


def test_running_server_for_tests(spec, tmp_path, monkeypatch):
    (tmp_path / "repository" / "swift").mkdir(parents=True)
    (tmp_path / "repository" / "swift" / "config.pbtxt").touch()
    monkeypatch.setattr(server_process, "find_triton", lambda _: spec.install)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ZeroDivisionError), running_server(tmp_path / "repository") as server:
        assert server.http_url == f"http://127.0.0.1:{server.endpoints.http_port}"
        assert server.grpc_url == f"grpc://{server.grpc_target}"
        assert server.metrics_url.endswith(f":{server.endpoints.metrics_port}/metrics")
        assert server.log_path.is_file()
        assert server.pid in living_members(server.pid)
        _ = 1 / 0
    assert living_members(server.pid) == []
    assert not server.log_path.exists()
