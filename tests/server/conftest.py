"""A real tritonserver around a tiny random model: starts in seconds, answers in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.grpc_stream import GrpcStream
from swift_backend.serving.server_process import RunningServer, running_server
from tests.conftest import CHAT_TEMPLATE, save_tiny_model, tiny_config


@pytest.fixture(scope="session")
def tiny_chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words w0 … w63, a context of 256 tokens, and a chat template that joins the contents."""
    directory = save_tiny_model(tmp_path_factory.mktemp("served"), tiny_config("llama"))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return directory


@pytest.fixture(scope="session")
def tiny_server(tiny_chat_model: Path) -> Iterator[RunningServer]:
    """float32, so that answers are exact; debug, so that every step checks the engine's invariants.

    One thread: waking a second one costs more than a tiny model's whole pass. limit_drafts off: else "fixed" would
    draft in a batch by what the clock says, which of a tiny model is anything.
    """
    options = {"MODEL": str(tiny_chat_model), "DTYPE": "float32", "DEBUG": "true", "LIMIT_DRAFTS": "false"}
    environment = {f"SWIFT_{name}": value for name, value in options.items()} | {"OMP_NUM_THREADS": "1"}
    with running_server(environment=environment) as running:
        yield running


@pytest.fixture(scope="session")
def tiny_stream(tiny_server: RunningServer) -> Iterator[GrpcStream]:
    stream = GrpcStream(tiny_server.grpc_target)
    yield stream
    stream.close()
