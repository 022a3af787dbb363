"""The launcher with a real tritonserver and a toy model: ready, streaming, and gone without a trace."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from swift_backend.serving.endpoints import Endpoints, free_endpoints
from swift_backend.serving.launch_error import LaunchError
from swift_backend.serving.paste_lines import curl_lines, python_example
from swift_backend.serving.process_group import living_members
from swift_backend.serving.server_process import running_server

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]

TOY_MODEL = '''
import os
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Streams the prompt word by word, then what the launcher said the model is; whole if not asked to stream."""

    def execute(self, requests):
        for request in requests:
            given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            prompt = given["messages" if "messages" in given else "text_input"][0].decode()
            words = [word + " " for word in prompt.split()] + [os.environ["SWIFT_MODEL"]]
            chunks = words if given.get("stream", [False])[0] else ["".join(words)]
            sender = request.get_response_sender()
            for number, chunk in enumerate(chunks):
                final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if number == len(chunks) - 1 else 0
                text = pb_utils.Tensor("text_output", numpy.array([chunk.encode()], dtype=object))
                count = pb_utils.Tensor("num_output_tokens", numpy.array([1], dtype=numpy.uint32))
                sender.send(pb_utils.InferenceResponse([text, count]), flags=final)
'''

TOY_CONFIG = """
name: "swift"
backend: "python"
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "messages" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }
]
instance_group [ { kind: KIND_CPU } ]
"""


@pytest.fixture
def repository(tmp_path) -> Path:
    version = tmp_path / "repository" / "swift" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(TOY_MODEL)
    (version.parent / "config.pbtxt").write_text(TOY_CONFIG)
    return tmp_path / "repository"


@pytest.fixture
def model(tmp_path) -> Path:
    """A folder that passes for a checkpoint; the toy model only tells its name."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return folder


class Launch:
    """A launcher that was started, what it said so far, and the traces its server leaves."""

    def __init__(self, process: subprocess.Popen[str], endpoints: Endpoints) -> None:
        self.process = process
        self.endpoints = endpoints
        self.said = ""

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        while text not in self.said:
            line = self.process.stdout.readline()
            assert line, f"{text!r} never came, only:\n{self.said}"
            self.said += line

    def finish(self) -> int:
        self.said += self.process.communicate(timeout=60)[0]
        return self.process.returncode

    def server_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (pid,) = (int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "tritonserver\n")
        return pid

    def regions(self) -> list[str]:
        return [name for name in os.listdir("/dev/shm") if name.startswith(f"swift_{self.process.pid}_")]


def launcher_command(repository: Path, model: Path, endpoints: Endpoints) -> list[str]:
    ports = [f"--{kind}-port={getattr(endpoints, f'{kind}_port')}" for kind in ("http", "grpc", "metrics")]
    start = [sys.executable, "-m", "swift_backend.serving.launcher", "--host=127.0.0.1", *ports]
    return [*start, f"--model-repository={repository}", f"--model={model}"]


@contextlib.contextmanager
def launched(repository: Path, model: Path, *arguments: str) -> Iterator[Launch]:
    at = free_endpoints()
    command = [*launcher_command(repository, model, at), *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Launch(process, at)
        finally:
            # A test that failed half way; the server follows its launcher.
            process.kill()


def test_serve_stream_and_stop_with_ctrl_c(repository, model):
    with launched(repository, model) as launch:
        launch.read_until("Ctrl-C stops it")
        server = launch.server_pid()
        assert len(living_members(server)) == 2
        assert len(launch.regions()) == 1
        assert '[{"role": "user", "content": "Explain in two sentences' in launch.said
        assert re.search(r"1[0-9] tokens in \d+\.\d\d s \(\d+\.\d tokens/s, first after", launch.said)

        url = f"{launch.endpoints.http_url}/v2/models/swift/generate_stream"
        body = {"text_input": "one two", "stream": True}
        with httpx.stream("POST", url, json=body, trust_env=False) as response:
            events = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
        assert [event["text_output"] for event in events] == ["one ", "two ", str(model)]

        launch.process.send_signal(signal.SIGINT)
        assert launch.finish() == 0
        assert launch.said.endswith("Stopping Triton …\nStopped.\n")
        assert living_members(server) == []
        assert launch.regions() == []


def test_what_it_prints_to_paste_works(repository, model):
    with launched(repository, model, "--no-demo") as launch:
        launch.read_until("Ctrl-C stops it")
        prompt = "The swift is a bird that"
        for line in curl_lines(launch.endpoints):
            assert line in launch.said
            answer = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=True).stdout
            assert str(model) in answer
        program = python_example(launch.endpoints)
        assert program in launch.said
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        assert run.stdout == f"{prompt} {model}\n"
        launch.process.send_signal(signal.SIGTERM)
        assert launch.finish() == 0


def test_a_killed_server_ends_the_launcher(repository, model):
    with launched(repository, model, "--no-demo") as launch:
        launch.read_until("Ctrl-C stops it")
        server = launch.server_pid()
        os.kill(server, signal.SIGKILL)
        assert launch.finish() == 1
        assert "error: Triton ended by itself (signal 9). Its log says:" in launch.said
        assert "Traceback" not in launch.said
        assert living_members(server) == []
        assert launch.regions() == []


def test_a_killed_launcher_takes_its_server_along(repository, model):
    with launched(repository, model, "--no-demo") as launch:
        launch.read_until("Ctrl-C stops it")
        server = launch.server_pid()
        launch.process.kill()
        deadline = time.monotonic() + 30
        while (living_members(server) or launch.regions()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert living_members(server) == []
        assert launch.regions() == []


def test_a_model_that_does_not_load(repository, model):
    (repository / "swift" / "1" / "model.py").write_text("import nothing_of_that_name\n")
    with launched(repository, model) as launch:
        assert launch.finish() == 1
        assert "error: Triton could not start (exit code 1). Its log says:\n" in launch.said
        assert "No module named 'nothing_of_that_name'" in launch.said
        assert launch.regions() == []


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_make_ends_without_an_error_on_ctrl_c(repository, model, tmp_path):
    """Ctrl-C typed on a terminal goes to everyone in the foreground; make must not get it."""
    at = free_endpoints()
    command = " ".join([*launcher_command(repository, model, at), "--foreground", "--no-demo"])
    (tmp_path / "Makefile").write_text(f"serve:\n\t@cd {ROOT} && exec {command}\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("make", ["make", "-C", str(tmp_path), "--no-print-directory", "serve"])
    screen = b""
    typed = False
    with contextlib.suppress(OSError):  # The terminal is closed at the end.
        while True:
            screen += os.read(terminal, 4096)
            if b"Ctrl-C stops it" in screen and not typed:
                os.write(terminal, b"\x03")
                typed = True
    status = os.waitpid(pid, 0)[1]
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert screen.decode().endswith("Stopping Triton …\r\nStopped.\r\n")


def test_running_server_for_other_tests(repository):
    with running_server(repository, environment={"SWIFT_MODEL": "toy"}) as server:
        url = f"{server.http_url}/v2/models/swift/generate"
        answer = httpx.post(url, json={"text_input": "a b"}, trust_env=False, timeout=30)
        assert answer.json()["text_output"] == "a b toy"
        assert "nv_inference_request_success" in httpx.get(server.metrics_url, trust_env=False).text
        pid = server.pid
    assert living_members(pid) == []


def test_running_server_that_cannot_start(repository):
    (repository / "swift" / "config.pbtxt").write_text("nonsense")
    with (
        pytest.raises(LaunchError, match="Triton could not start"),
        running_server(repository, environment={"SWIFT_MODEL": "toy"}),
    ):
        pytest.fail("it must not become ready")
