"""A load test that is ended early, or told something useless: the server is left alone, and the reason is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.figures import read_metrics, total
from loadtest.load.outcome import WITHDRAWN
from loadtest.sweep.locust_run import LOCUSTFILE, ROOT
from swift_backend.serving.server_process import RunningServer, running_server
from tests.client.wire_servers import within
from tests.conftest import CHAT_TEMPLATE, save_tiny_model, tiny_config

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}


@pytest.fixture(scope="module")
def server(lasting_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Its answers take minutes: no token ends them."""
    config = tiny_config("llama", max_position_embeddings=32768, eos_token_id=None)
    directory = save_tiny_model(tmp_path_factory.mktemp("endless"), config)
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    with running_server(
        environment={**lasting_environment, "SWIFT_MODEL": str(directory), "OMP_NUM_THREADS": "1"}
    ) as running:
        yield running


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.jsonl"
    path.write_text(json.dumps({"category": "c", "turns": ["w5 w6 w7"]}))
    return path


def figure(server: RunningServer, name: str, **labels: str) -> float:
    return total(read_metrics(server.metrics_url), name, **labels)


@pytest.mark.parametrize(("protocol", "number"), [("grpc", signal.SIGINT), ("http", signal.SIGTERM)])
def test_requests_that_would_take_minutes_are_withdrawn(
    server: RunningServer, words: Path, tmp_path: Path, protocol: str, number: signal.Signals
) -> None:
    """And what had come of them is kept."""
    out, page = tmp_path / "sweep.json", tmp_path / "sweep.html"
    url = server.grpc_url if protocol == "grpc" else server.http_url
    options = ["--url", url, "--metrics-url", server.metrics_url, "--dataset", str(words), "--max-tokens", "30000"]
    options += ["--speculation", "off", "--users", "2,4", "--duration", "100s", "--json", str(out), "--html", str(page)]
    cancelled = figure(server, "swift_requests_total", outcome="cancelled")
    process = subprocess.Popen(
        [sys.executable, "-m", "loadtest.sweep", *options], env=ENVIRONMENT, stdout=subprocess.DEVNULL
    )
    try:
        within(60, lambda: figure(server, "swift_running_requests") == 2)
        time.sleep(0.5)
    finally:
        process.send_signal(number)
    assert process.wait(30) == 130
    within(5, lambda: figure(server, "swift_running_requests") == 0)
    assert figure(server, "swift_requests_total", outcome="cancelled") - cancelled == 2
    [level] = json.loads(out.read_text())["levels"]
    assert (level["users"], level["complete"], level["errors"]) == (2, False, {WITHDRAWN: 2})
    assert (level["requests"], level["failures"]) == (2, 0)
    assert level["output_tokens"] > 2 and "</html>" in page.read_text()


def test_a_dataset_that_cannot_be_read_ends_locust_with_one_sentence(server: RunningServer) -> None:
    options = ["--headless", "-t", "2s", "--host", server.grpc_url, "--dataset", "/nowhere.jsonl"]
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *options]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "/nowhere.jsonl" in done.stderr and "Traceback" not in done.stderr


def test_users_who_are_refused_do_not_ask_without_a_pause(server: RunningServer, words: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    options = ["--url", server.grpc_url, "--metrics-url", server.metrics_url, "--dataset", str(words)]
    options += ["--max-tokens", "3000000000", "--users", "2", "--duration", "2s", "--json", str(out)]
    command = [sys.executable, "-m", "loadtest.sweep", *options]
    assert subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, timeout=60).returncode == 1
    [level] = json.loads(out.read_text())["levels"]
    assert 2 <= level["requests"] == level["failures"] <= 8
    assert all("max_tokens must be in" in said for said in level["errors"])
