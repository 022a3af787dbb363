"""A sweep's levels, what the server says of them, and its page."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.load.outcome import Outcome
from loadtest.load.summary import summary
from loadtest.sweep import __main__ as command
from loadtest.sweep import locust_run, server_side
from loadtest.sweep.charts import write_report
from loadtest.sweep.locust_run import Interrupted, Load, LocustFailed, run_level
from loadtest.sweep.options import duration, for_locust, metrics_url, parser, users
from loadtest.sweep.table import cells
from tests.loadtest.browser import check_page

BEFORE = {("swift_generated_tokens_total", ()): 100.0, ("swift_request_seconds_sum", ()): 5.0}
ADDED = {
    ("swift_generated_tokens_total", ()): 8.0,
    ("swift_request_seconds_sum", ()): 1.9,
    ("swift_request_seconds_count", ()): 2.0,
    ("swift_rounds_total", ()): 4.0,
    ("swift_draft_tokens_total", (("drafter", "ngram"),)): 4.0,
    ("swift_draft_tokens_total", (("drafter", "sibling"),)): 2.0,
    ("swift_accepted_draft_tokens_total", (("drafter", "ngram"),)): 3.0,
}


def after() -> dict[Any, float]:
    return {sample: BEFORE.get(sample, 0.0) + value for sample, value in ADDED.items()}


def outcomes(*errors: str) -> list[Outcome]:
    good = [Outcome(i, 0.0, [(0.5, 1), (1.0, 3)], 1.0, 4, 9, 3, 1 + i, "length") for i in range(2)]
    return good + [Outcome(9, 0.0, error=error) for error in errors]


def level(number: int = 2, *errors: str, **changed: Any) -> dict[str, Any]:
    seen = summary(outcomes(*errors), 2.0)
    server = server_side.compare(BEFORE, after(), seen)
    return {"users": number, "complete": True, **seen, "server": server, "broken": [], **changed}


def report(*levels: dict[str, Any]) -> dict[str, Any]:
    facts = {name: name for name in ("url", "workload", "shape", "duration", "command")}
    return {**facts, "machine": {"cpu": "some"}, "levels": list(levels)}


def test_server_and_users_agree_to_the_last_token() -> None:
    seen = summary(outcomes(), 2.0)
    server = server_side.compare(BEFORE, after(), seen)
    assert server is not None and server["differences"] == []
    assert (server["output_tokens"], server["drafted_per_round"], server["requests"]) == (8, 1.5, 2)
    assert server_side.compare(None, after(), seen) is None


@pytest.mark.parametrize(
    ("sample", "value", "said"),
    [
        ("swift_generated_tokens_total", 9.0, "output_tokens: the server counts 9, users saw 8"),
        ("swift_draft_tokens_total", 7.0, "draft_tokens: the server counts 9, users saw 6"),
        ("swift_request_seconds_sum", 1.5, "mean seconds of a request: 0.750 on the server, 1.000 for users"),
    ],
)
def test_a_difference_is_told(sample: str, value: float, said: str) -> None:
    changed = {key: value if key[0] == sample and dict(key[1]).get("drafter") != "sibling" else n
               for key, n in ADDED.items()}  # fmt: skip
    later = {key: BEFORE.get(key, 0.0) + n for key, n in changed.items()}
    server = server_side.compare(BEFORE, later, summary(outcomes(), 2.0))
    assert server is not None and server["differences"] == [said]


def test_a_line_of_the_table() -> None:
    line = cells(level())
    assert line == ["2", "2", "0", "500/500/500", "166.7/166.7/166.7", "1.00/1.00/1.00", "4.0", "50%", "1.50", "yes"]
    assert cells(level(server=None))[-2:] == ["–", "no metrics"]
    assert cells(level(complete=False))[0] == "2 (cut short)"


@pytest.mark.timeout(240)
def test_its_page_alone_and_beside_another(tmp_path: Path) -> None:
    """What failed is on it."""
    bad = level(4, "QueueFull: 4 of 4", server=None, broken=["ttft p90 is 0.5 s, allowed are 0.1 s"])
    alone, both = tmp_path / "alone.html", tmp_path / "both.html"
    write_report(alone, report(level(1), bad))
    write_report(both, report(level(1), level(2)), report(level(1), level(8)))
    for path in (alone, both):
        check_page(path, tmp_path)
    assert "QueueFull: 4 of 4" in alone.read_text() and "ttft p90 is 0.5 s" in alone.read_text()
    assert "This run over the other" in both.read_text() and "This run over the other" not in alone.read_text()


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30.0), ("2m", 120.0), ("1.5", 1.5), ("1h", 3600.0)])
def test_times(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "ten", "5d", "-3s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a time"):
        duration(text)


def test_options(tmp_path: Path) -> None:
    assert users("1,2,4") == [1, 2, 4]
    for wrong in ("", "0,1", "a"):
        with pytest.raises(argparse.ArgumentTypeError, match="numbers from 1 on"):
            users(wrong)
    assert metrics_url("grpc://there:8001", None) == "http://there:8002/metrics"
    assert metrics_url("grpc://there:8001", "http://x/metrics") == "http://x/metrics"
    given = parser().parse_args(["--dataset", "a", "--dataset", "b", "--max-tokens", "3"])
    assert for_locust(given)[-4:] == ["--max-tokens", "3", "--dataset", "a,b"]
    command = Load("grpc://there:1", 5.0).command(3, tmp_path / "r")
    seeds = {one[one.index("--prompt-seed") + 1] for one in (command, Load("", 5.0).command(4, tmp_path))}
    assert len(seeds) == 2
    assert command[command.index("-u") + 1] == "3" and command[command.index("-t") + 1] == "5s"


class FakeLocust:
    """A process that writes two requests, then does what a test says."""

    def __init__(self, then: str) -> None:
        self.then = then

    def command(self, number: int, record: Path) -> list[str]:
        lines = "".join(one.line() for one in outcomes()) if self.then != "silent" else ""
        program = (
            "import sys, time, signal\n"
            f"open({str(record)!r}, 'w').write({lines!r})\n"
            f"then = {self.then!r}\n"
            "if then == 'deaf': signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "print('said this', flush=True)\n"
            "if then in ('wait', 'deaf'): time.sleep(60)\n"
            "sys.exit({'fail': 3}.get(then, 0))\n"
        )
        return [sys.executable, "-c", program]


def load(then: str) -> Any:
    return FakeLocust(then)


def test_a_level_is_what_locust_wrote() -> None:
    assert run_level(load("end"), 2) == outcomes()


@pytest.mark.parametrize("then", ["fail", "silent"])
def test_a_locust_that_fails_is_told_with_what_it_said(then: str) -> None:
    with pytest.raises(LocustFailed, match="said this"):
        run_level(load(then), 2)


@pytest.mark.parametrize("then", ["wait", "deaf"])
def test_ctrl_c_ends_locust_and_keeps_what_was_seen(then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locust_run, "LAST_SECONDS", 1)
    children: list[subprocess.Popen[bytes]] = []
    original = subprocess.Popen

    def started(*arguments: Any, **options: Any) -> Any:
        children.append(original(*arguments, **options))
        return children[-1]

    monkeypatch.setattr(locust_run.subprocess, "Popen", started)

    def interrupt(seconds: float) -> None:
        if seconds > 1.0:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        run_level(load(then), 2, interrupt)
    assert stopped.value.args[0] == outcomes()
    assert children[0].poll() is not None


class Levels:
    """In place of Locust: outcomes of each level, or an exception."""

    def __init__(self, *levels: Any) -> None:
        self.levels = list(levels)

    def __call__(self, load: Load, number: int, on_tick: Any) -> list[Outcome]:
        found = self.levels.pop(0)
        if isinstance(found, BaseException):
            raise found
        on_tick(1.0)
        return list(found)


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(levels: Levels, *more: str, metrics: Any = None) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(command, "run_level", levels)
        pages = iter(metrics or [])
        monkeypatch.setattr(server_side, "read_at_rest", lambda url: next(pages, None))
        out = tmp_path / "out.json"
        options = ["--users", "1,2", "--json", str(out), "--html", str(tmp_path / "out.html"), *more]
        status = command.Sweep(parser().parse_args(options), options, None).go()
        return status, json.loads(out.read_text())

    return run


def test_a_sweep_writes_what_it_measured(sweep: Any, tmp_path: Path) -> None:
    pages = [BEFORE, after(), BEFORE, after()]
    status, made = sweep(Levels(outcomes(), outcomes()), metrics=pages)
    assert status == 0 and [one["users"] for one in made["levels"]] == [1, 2]
    assert {"requests", "failures", "ttft", "inter_token", "end_to_end", "tokens_per_second", "acceptance_rate"} <= set(
        made["levels"][0]
    )
    assert all(one["server"]["differences"] == [] for one in made["levels"])
    assert "</html>" in (tmp_path / "out.html").read_text()


def test_ctrl_c_keeps_what_was_measured(sweep: Any, tmp_path: Path) -> None:
    status, made = sweep(Levels(outcomes(), Interrupted(outcomes()[:1])))
    assert status == command.INTERRUPTED
    assert [(one["users"], one["complete"], one["requests"]) for one in made["levels"]] == [(1, True, 2), (2, False, 1)]
    assert (tmp_path / "out.html").exists()
    # By default a level takes 30 s; this one came to four tokens in its only second.
    assert [one["tokens_per_second"] for one in made["levels"]] == [pytest.approx(8 / 30), 4.0]


def test_what_is_not_good_enough_has_an_exit_status(sweep: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(Levels(outcomes(), outcomes()))[0] == 0
    assert sweep(Levels(outcomes(), outcomes("QueueFull: full")))[0] == 1
    assert sweep(Levels(outcomes(), outcomes("QueueFull: full")), "--max-failures", "0.5")[0] == 0
    assert sweep(Levels(outcomes(), outcomes()), "--max-ttft-p90", "0.1")[0] == 1
    differing = {**after(), ("swift_generated_tokens_total", ()): 200.0}
    assert sweep(Levels(outcomes(), outcomes()), metrics=[BEFORE, differing])[0] == 1
    assert sweep(Levels(outcomes(), LocustFailed("locust ended with 3")))[0] == 1
    shown = " ".join(capsys.readouterr().out.split())
    for said in ("1 times QueueFull: full", "ttft p90 is 0.500 s", "the server counts 100", "locust ended with 3"):
        assert said in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dataset", "/nowhere.jsonl"], "nowhere.jsonl"),
        (["--compare", __file__], "JSONDecodeError"),
        (["--url", "ftp://x"], "ftp"),
        (["--url", "grpc://127.0.0.1:1"], "ConnectionFailed"),
        (["--users", "0"], "numbers from 1 on"),
        (["--max-tokens", "0"], "a number from 1 on"),
        (["--workload", "chess"], "chess"),
    ],
)
def test_what_is_asked_for_wrongly(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(options)
    assert stopped.value.code == 2 and said in capsys.readouterr().err
