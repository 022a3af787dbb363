"""What load tests do where something goes wrong: refusals, ends that come early, pages that are not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from swift_client import FakeTransport, QueueFull, fake_response

from loadtest.load.asking import ask, client_of
from loadtest.load.outcome import WITHDRAWN, Outcome
from loadtest.load.summary import summary
from loadtest.sweep import __main__ as command
from loadtest.sweep import server_side
from loadtest.sweep.locust_run import ROOT, Load
from loadtest.sweep.options import metrics_url
from loadtest.sweep.table import table

BUSY = {("swift_running_requests", ()): 1.0, ("swift_request_seconds_count", ()): 1.0}
IDLE = {("swift_running_requests", ()): 0.0, ("swift_request_seconds_count", ()): 1.0}
WRITTEN = {("swift_running_requests", ()): 0.0, ("swift_request_seconds_count", ()): 2.0}


def test_a_refusal_is_counted_and_not_tried_again() -> None:
    transport = FakeTransport([QueueFull("4 of 4 requests wait")], ["an answer"])
    with client_of("grpc://nowhere", transport=transport) as client:
        assert ask(client, 0, {"prompt": "Hi"}, {}).error == "QueueFull: 4 of 4 requests wait"


def test_what_came_of_a_request_that_the_end_withdraws() -> None:
    """Locust ends users by an exception that is no Exception."""
    transport = FakeTransport([fake_response("a", [1], drafted=3), fake_response("b", [2]), "c"])
    kept: list[Outcome] = []

    def end() -> None:
        raise SystemExit

    with client_of("grpc://nowhere", transport=transport) as client, pytest.raises(SystemExit):
        ask(client, 0, {"prompt": "Hi"}, {}, on_chunk=end, on_withdrawn=kept.append)
    [outcome] = kept
    assert (outcome.error, outcome.tokens, outcome.draft_tokens, outcome.finish_reason) == (WITHDRAWN, 1, 3, "")
    made = summary(kept, 1.0)
    assert (made["requests"], made["failures"], made["errors"]) == (1, 0, {WITHDRAWN: 1})


def test_locust_is_given_whole_seconds(tmp_path: Path) -> None:
    """It refuses others, and numbers like 1e+06."""
    for seconds, said in ((2.5, "3s"), (1_000_000.0, "1000000s")):
        options = Load("grpc://there:1", seconds).command(3, tmp_path / "r")
        assert options[options.index("-t") + 1] == said


def test_the_metrics_page_of_an_address_in_brackets() -> None:
    assert metrics_url("grpc://[::1]:9001", None) == "http://[::1]:8002/metrics"


def test_a_metrics_page_that_is_named_must_be_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "SwiftClient", lambda url: client_of(url, transport=FakeTransport()))
    with pytest.raises(SystemExit) as stopped:
        command.main(["--metrics-url", "http://127.0.0.1:1/metrics"])
    assert stopped.value.code == 2
    assert "--metrics-url must be a page that answers, got http://127.0.0.1:1/metrics" in capsys.readouterr().err


def test_figures_are_read_when_they_have_been_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server writes its gauges before its histograms."""
    pages = iter([BUSY, IDLE, WRITTEN, WRITTEN])
    monkeypatch.setattr(server_side, "read", lambda url: next(pages))
    assert server_side.read_at_rest("http://there") == WRITTEN


def test_a_terminal_of_80_columns_shows_every_figure() -> None:
    percentiles = {"p50": 1.2345, "p90": 23.456, "p99": 34.567}
    level: dict[str, Any] = {
        "users": 8, "complete": True, "requests": 1234, "failures": 0, "ttft": percentiles, "inter_token": percentiles,
        "end_to_end": percentiles, "tokens_per_second": 123.4, "acceptance_rate": 0.5,
        "server": {"drafted_per_round": 1.25, "differences": []},
    }  # fmt: skip
    console = Console(width=80, record=True)
    console.print(table([level, {**level, "server": None, "complete": False}]))
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= 80 and "…" not in shown
    for figure in ("1234", "23456", "34567.0", "34.57", "123.4", "50%", "1.25"):
        assert figure in shown


@pytest.mark.parametrize("name", ["users", "num_users"])
def test_the_web_pages_number_of_users_is_kept_by_either_locust(name: str) -> None:
    """2.35 leaves num_users as it was. In a process of its own: importing Locust patches the one it is in."""
    program = (
        "from types import SimpleNamespace as Some\n"
        "from loadtest.load.users import Course\n"
        f"options = Some(**{{'num_users': None, {name!r}: 3}}, run_time=None, spawn_rate=1, shape='constant')\n"
        "course = Course()\n"
        "course.runner = Some(environment=Some(parsed_options=options))\n"
        "print(course.tick())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "(3, 1)\n"
