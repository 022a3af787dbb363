import os
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from swift_backend.errors import ModelLoadError
from swift_backend.serving import launcher
from swift_backend.serving.demo import DemoSummary
from swift_backend.serving.endpoints import free_endpoints
from swift_backend.serving.launch_error import LaunchError
from swift_backend.serving.launch_options import parse_options

SUMMARY = DemoSummary(48, 2.0, 0.25, 40, 30, 0.75, "length")


@pytest.fixture
def surroundings(tmp_path, monkeypatch, spec):
    """A launcher whose tritonserver is the stand-in, and whose model is a folder."""
    (tmp_path / "repository" / "swift").mkdir(parents=True)
    (tmp_path / "repository" / "swift" / "config.pbtxt").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("SWIFT_CACHE_DIR", "SWIFT_MODEL", "SWIFT_DTYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launcher, "find_triton", lambda _: spec.install)
    monkeypatch.setattr(launcher, "resolve_model", lambda source, dtype: tmp_path / f"model-{source}-{dtype}")
    monkeypatch.setattr(launcher, "stream_demo", lambda _: SUMMARY)
    return tmp_path


def arguments(folder: Path, *more: str) -> list[str]:
    at = free_endpoints()
    ports = ["--http-port", str(at.http_port), "--grpc-port", str(at.grpc_port), "--metrics-port", str(at.metrics_port)]
    return ["--host", "127.0.0.1", *ports, "--model-repository", str(folder / "repository"), *more]


def interrupt_when(condition, number=signal.SIGINT) -> threading.Thread:
    def wait() -> None:
        deadline = time.monotonic() + 30
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def regions() -> list[str]:
    """Those of the fake server; a real one of the same test run may be up."""
    names = os.listdir("/dev/shm")
    return [name for name in names if name.startswith(f"swift_{os.getpid()}_") and name.endswith("region")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(surroundings, capfd, number):
    said: list[str] = []

    def serving() -> bool:
        said.append(capfd.readouterr().out)
        return "Ctrl-C stops it" in "".join(said)

    thread = interrupt_when(serving, number)
    assert launcher.main(arguments(surroundings, "--model", "m", "--dtype", "float32")) == 0
    thread.join()
    output = "".join(said) + capfd.readouterr().out
    assert f"Loading {surroundings}/model-m-float32 …" in output
    assert "48 tokens in 2.00 s" in output
    assert "/v2/models/swift/generate_stream" in output
    assert output.endswith("Stopping Triton …\nStopped.\n")
    assert regions() == []


def failing(*_):
    raise LaunchError("Nothing answered.")


def test_a_failing_demo_does_not_end_the_server(surroundings, capfd, monkeypatch):
    monkeypatch.setattr(launcher, "stream_demo", failing)
    options = parse_options(arguments(surroundings), {})
    launcher.greet(options, Console())
    output = capfd.readouterr().out
    assert output.startswith("The demo request failed. Nothing answered.\n")
    assert "Ctrl-C stops it" in output


def test_no_demo(surroundings, capfd, monkeypatch):
    monkeypatch.setattr(launcher, "stream_demo", failing)
    launcher.greet(parse_options(arguments(surroundings, "--no-demo"), {}), Console())
    assert "demo" not in capfd.readouterr().out


def test_a_server_that_fails_to_start_shows_its_errors(surroundings, capfd):
    assert launcher.main(arguments(surroundings, "--", "--fail=1")) == 1
    captured = capfd.readouterr()
    assert captured.err.startswith("error: Triton could not start (exit code 3). Its log says:\n  E1130")
    assert "No module named 'x'" in captured.err and "Traceback" not in captured.err
    assert "all is well" not in captured.out
    assert regions() == []


def test_verbose_shows_the_log(surroundings, capfd, monkeypatch):
    monkeypatch.setattr(launcher, "stream_demo", failing)
    said: list[str] = []

    def shown() -> bool:
        said.append(capfd.readouterr().out)
        return "asked for /v2/health/ready" in "".join(said)

    thread = interrupt_when(shown)
    assert launcher.main(arguments(surroundings, "--verbose")) == 0
    thread.join()
    assert "asked for /v2/health/ready" in "".join(said)


def test_the_model_reaches_triton_by_environment(surroundings, spec):
    options = parse_options(arguments(surroundings, "--model", "m", "--", "--log-verbose=1"), {})
    planned = launcher.plan_server(options, surroundings)
    assert planned.environment == {"SWIFT_MODEL": f"{surroundings}/model-m-bfloat16"}
    assert (planned.arguments, planned.install) == (("--log-verbose=1",), spec.install)
    chosen = launcher.plan_server(replace(options, model=None, dtype="float32"), surroundings)
    assert chosen.environment == {"SWIFT_MODEL": f"{surroundings}/model-None-float32", "SWIFT_DTYPE": "float32"}


def no_triton(_):
    raise LaunchError("No tritonserver found. Run `make install`.")


def no_model(*_):
    raise ModelLoadError("The model 'm' does not exist.")


@pytest.mark.parametrize(
    ("name", "stand_in", "message"),
    [
        ("find_triton", no_triton, "error: No tritonserver found. Run `make install`.\n"),
        ("resolve_model", no_model, "error: The model 'm' does not exist.\n"),
    ],
)
def test_what_cannot_work_is_one_sentence(surroundings, capfd, monkeypatch, name, stand_in, message):
    monkeypatch.setattr(launcher, name, stand_in)
    assert launcher.main(arguments(surroundings, "--model", "m")) == 1
    assert capfd.readouterr() == ("", message)


def test_a_taken_port_is_one_sentence(surroundings, capfd):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert launcher.main([*arguments(surroundings), "--grpc-port", str(port)]) == 1
    assert capfd.readouterr().err.startswith(f"error: The grpc port {port} is taken by another process. ")


def test_a_missing_repository_is_one_sentence(surroundings, capfd):
    assert launcher.main([*arguments(surroundings), "--model-repository", str(surroundings / "nowhere")]) == 1
    assert "/nowhere does not exist" in capfd.readouterr().err


def test_an_interrupt_while_the_model_is_converted(surroundings, capfd, monkeypatch):
    monkeypatch.setattr(launcher, "resolve_model", lambda *_: time.sleep(60))
    begin = time.monotonic()
    thread = interrupt_when(lambda: time.monotonic() - begin > 0.5)
    assert launcher.main(arguments(surroundings)) == 0
    thread.join()
    assert time.monotonic() - begin < 20
    assert capfd.readouterr().out == "Stopped.\n"


def test_a_spinner_only_on_a_terminal(capsys):
    with launcher.waiting(Console(force_terminal=True), "Loading"):
        pass
    assert "\x1b[" in capsys.readouterr().out
    with pytest.raises(LaunchError), launcher.waiting(Console(force_terminal=False), "Loading"):
        failing()
    assert capsys.readouterr().out == "Loading …\n"
