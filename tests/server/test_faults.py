"""Killed stubs, failing engines and stopping servers: nobody waits for ever, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loadtest.grpc_stream import GrpcStream, StreamError
from swift_backend.serving.server_command import PROJECT_ROOT
from swift_backend.serving.server_process import RunningServer, running_server
from tests.server.clients import LASTING, UP_SECONDS, Client, ready
from tests.server.processes import is_gone, regions, stubs, within

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

EXIT_TIMEOUT = 20.0


@pytest.fixture
def server(lasting_environment: dict[str, str]) -> Iterator[RunningServer]:
    with running_server(environment=lasting_environment, exit_timeout=EXIT_TIMEOUT) as running:
        time.sleep(UP_SECONDS)
        yield running


@pytest.fixture
def clients(server: RunningServer) -> list[Client]:
    """Streams of both models that are in the middle of their answers."""
    made = [Client(server, model) for model in ("swift_decoder", "swift", "swift_decoder", "swift")]
    within(20, lambda: all(len(client.chunks) > 5 for client in made))
    return made


@pytest.mark.parametrize("model", ["swift_decoder", "swift_tokenizer"])
def test_a_killed_stub_ends_its_clients_and_the_readiness(
    server: RunningServer, clients: list[Client], model: str
) -> None:
    """server#8604, #7230: Triton 2.51 itself says ready and lets the clients wait for ever."""
    files, family = regions(server.pid), psutil.Process(server.pid).children(recursive=True)
    stubs(server.pid, model)[0].kill()
    killed = time.monotonic()
    within(5, lambda: not ready(server))
    within(5, lambda: all(client.ended for client in clients))
    assert all(client.error is not None for client in clients)
    assert max(client.ended for client in clients) - killed < 5
    within(5, lambda: all(map(is_gone, family)))
    assert files
    within(2, lambda: not any(os.path.exists(file) for file in files))


def test_a_killed_server_takes_its_stubs_along(server: RunningServer, clients: list[Client]) -> None:
    """Without us they would wait for it for ever, with the weights in memory."""
    files, family = regions(server.pid), psutil.Process(server.pid).children(recursive=True)
    os.kill(server.pid, signal.SIGKILL)
    within(5, lambda: all(client.ended for client in clients))
    within(5, lambda: all(map(is_gone, family)))
    assert len(family) >= 6 and files and not any(os.path.exists(file) for file in files)


def test_a_stopping_server_ends_every_stream_in_time(server: RunningServer, clients: list[Client]) -> None:
    """SIGTERM, as Kubernetes sends it; Triton 2.51 alone would hang on the open gRPC streams."""
    files, process = regions(server.pid), psutil.Process(server.pid)
    family = process.children(recursive=True)
    short = Client(server, "swift_decoder", {**LASTING, "max_tokens": 60})
    os.kill(server.pid, signal.SIGTERM)
    stopped = time.monotonic()
    within(EXIT_TIMEOUT, lambda: all(client.ended for client in [*clients, short]))
    assert [client.error for client in [*clients, short]] == [None] * 5
    assert [client.reason for client in clients] == ["cancelled"] * 4
    assert all(client.chunks[-1].final for client in clients)
    assert (short.reason, sum(len(c.outputs["output_ids"]) for c in short.chunks)) == ("length", 60)
    within(EXIT_TIMEOUT, lambda: is_gone(process))
    assert time.monotonic() - stopped < EXIT_TIMEOUT
    within(5, lambda: all(map(is_gone, family)))
    assert files and not any(os.path.exists(file) for file in files)


def test_a_failing_engine_tells_everybody_and_has_the_server_stopped(
    lasting_environment: dict[str, str], tmp_path: Path
) -> None:
    """An exception in a step, like a device that is out of memory; the prompt 63 63 brings it about."""
    repository = tmp_path / "models"
    shutil.copytree(PROJECT_ROOT / "model_repository", repository)
    (repository / "swift_decoder" / "1" / "model.py").write_text(
        "import torch\n"
        "from swift_backend.verification import Verification\n"
        "from swift_backend.serving.decoder_model import TritonPythonModel\n"
        "verify = Verification.verify\n"
        "def failing(self, plan, drafts):\n"
        "    if any(work.sequence.request.prompt_ids == [63, 63] for work in plan):\n"
        "        raise torch.OutOfMemoryError('out of memory')\n"
        "    return verify(self, plan, drafts)\n"
        "Verification.verify = failing\n"
    )
    with running_server(repository, environment=lasting_environment, exit_timeout=EXIT_TIMEOUT) as server:
        process, files = psutil.Process(server.pid), regions(server.pid)
        clients = [Client(server, model) for model in ("swift_decoder", "swift")]
        within(20, lambda: all(len(client.chunks) > 5 for client in clients))
        stream = GrpcStream(server.grpc_target)
        with pytest.raises(StreamError, match=r"request .*: the engine has failed \(OutOfMemoryError\)"):
            list(stream.stream("swift_decoder", {"input_ids": [63, 63]}))
        within(5, lambda: all(client.ended for client in clients))
        assert all("the engine has failed (OutOfMemoryError)" in str(client.error) for client in clients)
        within(5, lambda: not ready(server))
        within(EXIT_TIMEOUT, lambda: is_gone(process))
        stream.close()
        assert files and not any(os.path.exists(file) for file in files)
        assert "OutOfMemoryError: out of memory" in server.log_path.read_text()
