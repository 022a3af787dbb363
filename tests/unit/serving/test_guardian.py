"""The stub's side of the watch; here too, stand-ins play server and stub, since pytest must never be watched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from swift_backend.serving import guardian
from swift_backend.serving.guardian import Guardian, guard_this_stub, region_of_this_stub
from tests.unit.serving.stand_ins import KILLED, TERMINATED, StandIns, ended_by, free_port, within

ROOT = Path(__file__).parents[3]
# A stub as Triton runs it, but for the name of its program.
STUB = """
import sys, time
from swift_backend.serving.guardian import Guardian
guardian = Guardian("m", int(sys.argv[1]), "", lambda seconds: print("stopping", seconds, flush=True))
print(guardian._process.pid, flush=True)
if sys.stdin.readline() == "bye\\n":
    guardian.goodbye()
    print("said", flush=True)
time.sleep(60)
"""


@pytest.fixture
def stand_ins() -> Iterator[StandIns]:
    made = StandIns()
    yield made
    made.end()


@pytest.fixture
def guard(stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Guardian]]:
    """A guardian in this process, which takes a stand-in for the stub."""
    made: list[Guardian] = []

    def make(server: subprocess.Popen[bytes], stub: subprocess.Popen[bytes], **options: object) -> Guardian:
        monkeypatch.setattr(guardian, "os", SimpleNamespace(getpid=lambda: stub.pid, access=os.access, X_OK=os.X_OK))
        made.append(Guardian("m", server.pid, "", **{"on_stopping": lambda seconds: None, **options}))  # type: ignore
        return made[-1]

    yield make
    for one in made:
        one.goodbye()
        if one._process.poll() is None:
            one._process.kill()
            one._process.wait()
        one._thread.join(5)


def test_a_stub_that_dies_takes_its_server_along(stand_ins: StandIns) -> None:
    server = stand_ins.server("--deaf")
    stub = stand_ins.run([sys.executable, "-c", STUB, str(server.pid)], cwd=ROOT)
    assert stub.stdout is not None
    watch = int(stub.stdout.readline())
    assert Path(f"/proc/{watch}").exists() and server.poll() is None
    stub.kill()
    died = time.monotonic()
    assert ended_by(server) == KILLED
    assert time.monotonic() - died < 2.5
    within(5, lambda: not Path(f"/proc/{watch}/exe").exists())


def test_a_stub_that_said_goodbye_may_die(stand_ins: StandIns) -> None:
    server = stand_ins.server()
    stub = stand_ins.run([sys.executable, "-c", STUB, str(server.pid)], cwd=ROOT)
    assert stub.stdout is not None and stub.stdin is not None
    watch = int(stub.stdout.readline())
    stub.stdin.write(b"bye\n")
    stub.stdin.flush()
    assert stub.stdout.readline() == b"said\n"
    assert not Path(f"/proc/{watch}").exists()
    stub.kill()
    time.sleep(1.3)
    assert server.poll() is None


def test_a_server_that_dies_takes_its_stub_along(stand_ins: StandIns) -> None:
    """SIGKILL for the stub, which would wait for its server for ever."""
    server = stand_ins.server()
    stub = stand_ins.run([sys.executable, "-c", STUB, str(server.pid)], cwd=ROOT)
    assert stub.stdout is not None
    stub.stdout.readline()
    server.kill()
    server.wait()
    assert ended_by(stub) == KILLED


def test_news_of_a_stopping_server_arrive(stand_ins: StandIns, guard: Callable[..., Guardian]) -> None:
    server, seen = stand_ins.server(f"--http-port={free_port()}", "--exit-timeout-secs=12"), []
    guard(server, stand_ins.stub(), on_stopping=seen.append)
    time.sleep(0.5)
    assert seen == [] and server.stdin is not None
    server.stdin.write(b"\n")
    server.stdin.flush()
    within(5, lambda: seen)
    assert seen == [12.0]


def test_a_goodbye_ends_the_watch_and_nothing_else(stand_ins: StandIns, guard: Callable[..., Guardian]) -> None:
    server, stub = stand_ins.server(), stand_ins.stub()
    made = guard(server, stub)
    made.goodbye()
    assert (made._process.poll(), made._thread.is_alive()) == (0, False)
    made.goodbye()
    assert (server.poll(), stub.poll()) == (None, None)


def test_only_one_word_is_said_whoever_says_it_first(stand_ins: StandIns, guard: Callable[..., Guardian]) -> None:
    """The engine's thread and Triton's may speak at once, and b"stopbye" is neither word."""
    made = guard(stand_ins.server(), stand_ins.stub())
    threads = [Thread(target=word) for word in (made.goodbye, made.stop_server) * 8]
    written: list[bytes] = []
    pipe = made._process.stdin
    made._process.stdin = SimpleNamespace(  # type: ignore[assignment]
        write=lambda word: (written.append(word), time.sleep(0.05)), close=lambda: pipe.close()
    )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(written) == 1


def test_the_server_is_stopped_when_asked_for(stand_ins: StandIns, guard: Callable[..., Guardian]) -> None:
    server = stand_ins.server()
    guard(server, stand_ins.stub()).stop_server()
    assert ended_by(server) == TERMINATED


def test_a_goodbye_after_a_stop_waits_for_nobody(stand_ins: StandIns, guard: Callable[..., Guardian]) -> None:
    """The server that is stopping waits for our finalize; the watch waits for the server."""
    server, stub = stand_ins.server("--deaf", "--exit-timeout-secs=60"), stand_ins.stub()
    made = guard(server, stub)
    made.stop_server()
    began = time.monotonic()
    made.goodbye()
    assert time.monotonic() - began < 1
    assert (server.poll(), made._process.poll()) == (None, None)


def test_a_dead_watch_harms_nobody_and_is_reported(
    stand_ins: StandIns, guard: Callable[..., Guardian], caplog: pytest.LogCaptureFixture
) -> None:
    """From then on nobody sees to it that a dead stub ends the server, which its operator should know."""
    server, stub = stand_ins.server(), stand_ins.stub()
    made = guard(server, stub)
    made._process.kill()
    made._process.wait()
    within(5, lambda: caplog.messages)
    assert caplog.messages == ["m: the process that watches over this one and its server has ended"]
    made.stop_server()
    made.goodbye()
    assert (server.poll(), stub.poll()) == (None, None)


@pytest.mark.parametrize(
    ("argv", "region"),
    [
        (
            ["/opt/tritonserver/backends/python/triton_python_backend_stub", "model.py", "swift_1_ab_x", "1", "1", "7"],
            "swift_1_ab_x",
        ),
        (["triton_python_backend_stub", "model.py", "r", "1", "1"], ""),
        (["python", "model.py", "r"], ""),
        ([], ""),
    ],
)
def test_a_stub_is_known_by_its_command_line(argv: list[str], region: str) -> None:
    """pb_stub.cc: the model's file, then the region, are the stub's first arguments."""
    assert region_of_this_stub(argv) == region


def test_this_process_is_no_stub_and_gets_no_guardian() -> None:
    assert (region_of_this_stub(), guard_this_stub("m")) == ("", None)


def test_a_stub_gets_one_for_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[object, ...]] = []
    monkeypatch.setattr(guardian, "Guardian", lambda *what: made.append(what))
    stub = ["triton_python_backend_stub", "model.py", "r", "1", "1"]
    monkeypatch.setattr(guardian, "_command_line", lambda: [*stub, str(os.getppid())])
    guard_this_stub("m", print)
    assert made == [("m", os.getppid(), "r", print)]
    monkeypatch.setattr(guardian, "_command_line", lambda: [*stub, "1"])
    assert guard_this_stub("m", print) is None and len(made) == 1  # its server has died: the parent is another
