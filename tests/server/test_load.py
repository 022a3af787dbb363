"""Locust against a real server: its users, its thresholds, its web page, and a sweep that agrees with the metrics."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.load.outcome import read_outcomes
from loadtest.sweep import __main__ as sweep
from loadtest.sweep.locust_run import LOCUSTFILE, ROOT
from swift_backend.serving.server_process import RunningServer

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]
# Words that the tiny model knows; its context is short.
ROWS = [{"category": "c", "turns": [" ".join(f"w{3 + (i * n) % 60}" for n in range(1, 12))]} for i in range(1, 6)]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    return path


def locust(host: str, words: Path, *more: str) -> list[str]:
    options = ["--host", host, "--dataset", str(words), "--max-tokens", "12", *more]
    return [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *options]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(("limit", "status"), [("60", 0), ("0.000001", 1)])
def test_users_and_thresholds(
    tiny_server: RunningServer, words: Path, tmp_path: Path, protocol: str, limit: str, status: int
) -> None:
    host = f"grpc://{tiny_server.grpc_target}" if protocol == "grpc" else tiny_server.http_url
    record = tmp_path / "requests.jsonl"
    options = ["--headless", "-u", "3", "-r", "3", "-t", "3s", "--stop-timeout", "30", "--record", str(record)]
    command = locust(host, words, *options, "--max-ttft-p90", limit, "--only-summary")
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stderr
    outcomes = list(read_outcomes(record))
    assert len(outcomes) > 6 and {one.user for one in outcomes} == {0, 1, 2}
    assert [one.error for one in outcomes if one.error] == []
    assert all(one.tokens == sum(count for _, count in one.arrivals) > 0 for one in outcomes)
    assert ("threshold: ttft p90" in done.stderr) == (status == 1)
    for kind in (protocol, "TTFT", "gap"):
        assert any(line.startswith(kind) for line in (done.stdout + done.stderr).splitlines())


def test_the_web_page_has_the_extra_figures(tiny_server: RunningServer, words: Path) -> None:
    """Started and stopped as from the page."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = locust(f"grpc://{tiny_server.grpc_target}", words, "--web-port", str(port), "--web-host", "127.0.0.1")
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10) as page:
            _until(lambda: page.get("/").status_code == 200)
            assert "Speculation" in page.get("/").text
            started = page.post("/swarm", data={"user_count": 2, "spawn_rate": 2, "max_tokens": 8})
            assert started.status_code == 200 and started.json()["success"]
            _until(lambda: _line(page)["output_tokens"] > 40)
            line = _line(page)
            assert line["failures"] == 0 and line["ttft_p50"] > 0 and line["tokens_per_second"] > 0
            assert 200 in (page.post("/stop").status_code, page.get("/stop").status_code)  # by Locust's release
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def _line(page: httpx.Client) -> dict[str, Any]:
    [tab] = page.get("/stats/requests").json()["extended_stats"]
    return dict(tab["data"][0]) if tab["data"] else {"output_tokens": 0}


def _until(happened: Any, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            if happened():
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < until, "did not happen in time"
        time.sleep(0.1)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_sweep_agrees_with_the_server(tiny_server: RunningServer, words: Path, tmp_path: Path, protocol: str) -> None:
    url = f"grpc://{tiny_server.grpc_target}" if protocol == "grpc" else tiny_server.http_url
    out = tmp_path / "sweep.json"
    options = ["--url", url, "--metrics-url", tiny_server.metrics_url, "--dataset", str(words), "--max-tokens", "40"]
    files = ["--json", str(out), "--html", str(tmp_path / "sweep.html")]
    status = sweep.main([*options, *files, "--users", "1,4", "--duration", "3s"])
    levels = json.loads(out.read_text())["levels"]
    assert [level["failures"] for level in levels] == [0, 0]
    for level in levels:
        assert level["requests"] >= 3 and level["server"]["output_tokens"] == level["output_tokens"] > 0
        others = [said for said in level["server"]["differences"] if not said.startswith("mean seconds")]
        assert others == []  # of a tiny model's milliseconds the way to the server is a large part
    assert status in (0, 1)
