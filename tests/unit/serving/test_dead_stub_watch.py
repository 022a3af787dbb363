"""Who ends whom, when a stub or a server dies, fails or stops; stand-ins play both parts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from swift_backend.serving import dead_stub_watch
from swift_backend.serving.dead_stub_watch import Process, Watch, option
from tests.unit.serving.stand_ins import KILLED, TERMINATED, StandIns, ended_by, free_port, shared_files, within

UUID = "12345678-9abc-def0-1234-56789abcdef0"


@pytest.fixture
def stand_ins() -> Iterator[StandIns]:
    made = StandIns()
    yield made
    made.end()


class Stage:
    """A Watch on a thread, over a server and a stub of ours, with pipes in place of standard input and output."""

    def __init__(self, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch, *arguments: str, region: str = "") -> None:
        for name in ("LOOK", "FIRST_LOOK", "NEXT_LOOK", "GRACE", "PATIENCE"):
            monkeypatch.setattr(dead_stub_watch, f"{name}_SECONDS", 0.1)
        self.server, self.stub = stand_ins.server(*arguments), stand_ins.stub()
        news, to_news = os.pipe()
        words, to_words = os.pipe()
        self.news, self.words = os.fdopen(news, "rb"), os.fdopen(to_words, "wb", buffering=0)
        self.log: list[str] = []
        log = SimpleNamespace(write=self.log.append, flush=lambda: None)
        self._ends = [os.fdopen(words, "rb"), os.fdopen(to_news, "wb")]
        fake = SimpleNamespace(stdin=self._ends[0], stdout=self._ends[1], stderr=log)
        monkeypatch.setattr(dead_stub_watch, "sys", fake)
        self.watch = Watch("m", self.server.pid, self.stub.pid, region)
        self.thread = Thread(target=self.watch.run)
        self.thread.start()

    def end(self) -> None:
        if not self.words.closed:
            self.words.close()
        self.thread.join(5)
        assert not self.thread.is_alive()
        for pipe in (self.news, *self._ends):
            pipe.close()

    @property
    def lines(self) -> list[str]:
        return "".join(self.log).splitlines()


@pytest.fixture
def stage(stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def make(*arguments: str, region: str = "") -> Stage:
        made.append(Stage(stand_ins, monkeypatch, *arguments, region=region))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_a_dead_stub_takes_its_server_along(stage: Callable[..., Stage]) -> None:
    """The pipe from the stub ends with it."""
    scene = stage()
    scene.stub.kill()
    scene.words.close()
    assert ended_by(scene.server) == KILLED
    scene.thread.join(5)
    assert scene.lines == ["m: killing the server, whose open requests would never end"]


def test_a_server_that_ends_by_itself_is_not_killed(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then both are ended by the same hand, and the server may have its own way to end."""
    scene = stage()
    monkeypatch.setattr(dead_stub_watch, "GRACE_SECONDS", 5.0)
    scene.stub.kill()
    scene.words.close()
    time.sleep(0.1)
    scene.server.terminate()
    assert ended_by(scene.server) == TERMINATED
    scene.thread.join(1)
    assert (scene.thread.is_alive(), scene.lines) == (False, [])


def test_after_a_goodbye_nobody_is_killed(stage: Callable[..., Stage]) -> None:
    scene = stage()
    scene.words.write(b"bye")
    scene.thread.join(5)
    time.sleep(0.3)
    assert (scene.server.poll(), scene.stub.poll(), scene.lines) == (None, None, [])


def test_a_failed_engine_has_the_server_terminated(stage: Callable[..., Stage]) -> None:
    scene = stage("--exit-timeout-secs=5")
    scene.words.write(b"stop")
    assert ended_by(scene.server) == TERMINATED
    assert ended_by(scene.stub) == KILLED
    scene.thread.join(5)
    assert scene.lines == ["m: the engine has failed: stopping the server"]


def test_a_server_that_does_not_listen_is_killed_and_so_is_its_stub(stage: Callable[..., Stage]) -> None:
    scene = stage("--deaf", "--exit-timeout-secs=0.5")
    scene.words.write(b"stop")
    began = time.monotonic()
    assert ended_by(scene.server) == KILLED
    assert 0.5 <= time.monotonic() - began < 1.5
    assert ended_by(scene.stub) == KILLED
    assert scene.lines[1:] == ["m: killing the server, whose open requests would never end"]


def test_a_dead_server_takes_its_stub_along(stage: Callable[..., Stage]) -> None:
    with shared_files(UUID, "another") as (prefix, [own, another]):
        scene = stage(region=prefix + UUID)
        scene.server.kill()
        scene.server.wait()
        assert ended_by(scene.stub) == KILLED
        scene.thread.join(5)
        assert scene.lines == ["m: the server has died, so this process ends too"]
        assert (own.exists(), another.exists()) == (False, True)


def test_only_files_of_the_killed_server_go(stand_ins: StandIns, stage: Callable[..., Stage]) -> None:
    """Its clients' shared memory, and other servers', stays."""
    other = str(uuid.uuid4())
    with shared_files(UUID, other, "not-mapped", "CLIENT") as (prefix, files):
        own, second, not_mapped, client = files
        mapped = [f"--map={file}" for file in (own, second, client)]
        scene = stage(*mapped, region=prefix + UUID)
        scene.words.close()
        assert ended_by(scene.server) == KILLED
        scene.thread.join(5)
        assert [file.exists() for file in (own, second, not_mapped, client)] == [False, False, True, True]


def test_a_server_that_ends_in_order_keeps_its_files_to_itself(stage: Callable[..., Stage]) -> None:
    with shared_files(UUID) as (prefix, [own]):
        scene = stage(f"--map={own}", "--exit-timeout-secs=5", region=prefix + UUID)
        scene.words.write(b"stop")
        assert ended_by(scene.server) == TERMINATED
        scene.thread.join(5)
        assert own.exists()


@pytest.mark.parametrize("name", ["http-port", "grpc-port"])
def test_a_server_that_closes_its_door_is_stopping(stage: Callable[..., Stage], name: str) -> None:
    scene = stage(f"--{name}={free_port()}", "--exit-timeout-secs=0.3")
    within(5, lambda: scene.watch._doors)
    scene.server.stdin.write(b"\n")  # type: ignore[union-attr]
    scene.server.stdin.flush()  # type: ignore[union-attr]
    began = time.monotonic()
    assert scene.news.readline() == b"stopping 0.3\n"
    assert time.monotonic() - began < 1
    assert ended_by(scene.server) == KILLED
    assert 0.3 < time.monotonic() - began < 2
    assert ended_by(scene.stub) == KILLED


def test_a_server_with_open_doors_is_left_alone(stage: Callable[..., Stage]) -> None:
    port = free_port()
    scene = stage(f"--http-port={port}", "--exit-timeout-secs=0")
    within(5, lambda: scene.watch._doors)
    for _ in range(50):
        socket.create_connection(("127.0.0.1", port)).close()
        time.sleep(0.01)
    assert (scene.server.poll(), scene.watch._kill_at) == (None, float("inf"))
    scene.words.write(b"bye")


def test_other_ports_are_no_doors(stage: Callable[..., Stage]) -> None:
    """Metrics, and whatever else listens in the server."""
    scene = stage(f"--metrics-port={free_port()}", f"--http-port={free_port()}")
    within(5, lambda: len(scene.watch._doors) == 1)
    scene.words.write(b"bye")


@pytest.mark.parametrize(
    ("looks", "stopping"),
    [
        (["12"] * 6, False),
        (["12", "2", "2", "2", "12", "2"], False),
        (["12", "2", "2", "2", "2"], True),
        (["12", "2", "12", "2", "2", "2", "2"], True),
        (["1", "12", "1", "1", "1", "1"], True),
        (["12", "2", "1", "2", "1", "2"], False),
        (["", "1", "1", "1", "1"], False),
        (["12", None, None, None, None, "12"], False),
    ],
)
def test_one_look_that_misses_a_door_is_no_alarm(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, looks: list[str | None], stopping: bool
) -> None:
    """A false alarm would close the engine, and end a healthy server; None: the tables could not be read."""
    scene = stage()
    scene.words.write(b"bye")
    scene.thread.join(5)
    scene.watch._doors.clear()
    left = list(looks)
    monkeypatch.setattr(
        dead_stub_watch, "_listening", lambda pid, ports: None if (doors := left.pop(0)) is None else set(doors)
    )
    while left:
        scene.watch._look_at_doors()
    assert (scene.watch._kill_at < float("inf")) is stopping


def test_the_tables_are_read_seldom_while_the_doors_are_open(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading them takes 10 ms of a core; a socket that is gone, or the time, is reason enough."""
    scene, read, sockets, now = stage(), list[int](), {"1", "2"}, 100.0
    scene.words.write(b"bye")
    scene.thread.join(5)
    scene.watch._doors.clear()
    monkeypatch.setattr(dead_stub_watch, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(dead_stub_watch, "_sockets", lambda pid: sockets)
    monkeypatch.setattr(dead_stub_watch, "_listening", lambda pid, ports: read.append(1) or sockets & {"1", "2"})
    scene.watch._look_at_doors()
    now += dead_stub_watch.OPENING_SECONDS + dead_stub_watch.TABLES_SECONDS
    for _ in range(4):
        scene.watch._look_at_doors()
    assert len(read) == 2
    now += dead_stub_watch.TABLES_SECONDS
    scene.watch._look_at_doors()
    scene.watch._look_at_doors()
    assert len(read) == 3
    sockets = {"2", "3"}
    for look in range(dead_stub_watch.LOOKS):
        assert scene.watch._kill_at == float("inf"), look
        scene.watch._look_at_doors()
    assert scene.watch._kill_at < float("inf")


def test_a_door_that_opens_after_the_first_one_is_seen_at_once(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton opens gRPC, then HTTP, and closes HTTP first: who knows gRPC only would never learn of a stop."""
    scene, doors, now = stage(), {"grpc"}, 100.0
    scene.words.write(b"bye")
    scene.thread.join(5)
    scene.watch._doors.clear()
    monkeypatch.setattr(dead_stub_watch, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(dead_stub_watch, "_sockets", lambda pid: doors)
    monkeypatch.setattr(dead_stub_watch, "_listening", lambda pid, ports: set(doors))
    scene.watch._look_at_doors()
    assert scene.watch._pause == dead_stub_watch.FIRST_LOOK_SECONDS
    now += dead_stub_watch.FIRST_LOOK_SECONDS
    doors = {"grpc", "http"}
    scene.watch._look_at_doors()
    doors = {"grpc"}
    for _ in range(dead_stub_watch.LOOKS):
        scene.watch._look_at_doors()
    assert scene.watch._kill_at < float("inf")


def test_a_connection_that_ends_while_we_look_hides_no_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing /proc/PID/fd and reading what is listed are two steps; under load there is always one that is gone."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        ports, inode = {door.getsockname()[1]}, str(os.fstat(door.fileno()).st_ino)
        other = os.open("/dev/null", os.O_RDONLY)

        def readlink(path: str) -> str:
            if path.endswith(f"/{other}"):
                raise FileNotFoundError(path)
            return os.readlink(path)

        fake = SimpleNamespace(readlink=readlink, scandir=os.scandir)
        monkeypatch.setattr(dead_stub_watch, "os", fake)
        assert dead_stub_watch._listening(os.getpid(), ports) == {inode}
        os.close(other)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "30.0"),
        (["--exit-timeout-secs=7"], "7"),
        (["--exit-timeout-secs", "7"], "7"),
        (["--exit-timeout-secs=7.5"], "7.5"),
        (["--exit-timeout-secs=7", "--exit-timeout-secs", "8"], "8"),
        (["--exit-timeout-secs", "8", "--exit-timeout-secs=7"], "7"),
        (["--exit-timeout-secs=0"], "0"),
        (["--exit-timeout-secs="], "30.0"),
        (["--exit-timeout-secs"], "30.0"),
        (["--exit-timeout-secs=-1"], "30.0"),
        (["--exit-timeout-secs=soon"], "30.0"),
        (["--exit-timeout-secs=."], "30.0"),
        (["--exit-timeout-secs=²"], "30.0"),
        (["--exit-timeout-secs=1e9"], "30.0"),
        (["--exit-timeout-secs-more=7", "exit-timeout-secs=7", "---exit-timeout-secs=7"], "30.0"),
    ],
)
def test_how_long_a_server_allows_itself(arguments: list[str], expected: str) -> None:
    """Triton takes both forms; what it would refuse must not break the watch."""
    assert option(arguments, "exit-timeout-secs", 30.0) == expected
    assert float(option(["tritonserver", *arguments], "exit-timeout-secs", 30.0)) == float(expected)


@pytest.mark.parametrize(
    ("arguments", "ports", "seconds"),
    [
        ([], {8000, 8001}, 30.0),
        (["--http-port=9000", "--grpc-port", "9001", "--exit-timeout-secs=4"], {9000, 9001}, 4.0),
        (["--http-port=80.5"], {80, 8001}, 30.0),
    ],
)
def test_the_servers_command_line_is_read(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], ports: set[int], seconds: float
) -> None:
    monkeypatch.setattr(dead_stub_watch, "_arguments", lambda pid: arguments)
    monkeypatch.setattr(dead_stub_watch, "_birth", lambda pid: None)
    watch = Watch("m", 0, 0, "")
    assert (watch._ports, watch._exit_seconds) == (ports, seconds)


def test_a_later_process_with_the_same_id_is_left_alone(stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    bystander = stand_ins.stub()
    process = Process(bystander.pid)
    assert process.alive
    monkeypatch.setattr(dead_stub_watch, "_birth", lambda pid: "another time")
    assert not process.alive
    process.signal(signal.SIGKILL)
    assert process.wait(0.5) is True
    time.sleep(0.1)
    assert bystander.poll() is None


def test_a_process_that_only_waits_for_its_parent_is_dead(stand_ins: StandIns) -> None:
    stub = stand_ins.stub()
    process = Process(stub.pid)
    assert process.wait(0.05) is False
    os.kill(stub.pid, signal.SIGKILL)
    assert process.wait(5) is True
    stub.wait()
    assert not process.alive and not Process(stub.pid).alive


def test_a_process_with_brackets_in_its_name(stand_ins: StandIns, tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1"
    program.symlink_to("/bin/sleep")
    stub = stand_ins.run([str(program), "60"])
    within(5, lambda: Path(f"/proc/{stub.pid}/comm").read_text() == "a) Z 1\n")
    assert Process(stub.pid).alive


@pytest.fixture
def watch(stand_ins: StandIns) -> Callable[..., subprocess.Popen[bytes]]:
    """The watch as it is run, over two stand-ins."""

    def start(server: subprocess.Popen[bytes], stub: subprocess.Popen[bytes], **options: int) -> Any:
        command = [sys.executable, "-I", "-S", dead_stub_watch.__file__, "m", str(server.pid), str(stub.pid), ""]
        process = stand_ins.run(command, **{"stderr": subprocess.PIPE, **options})
        within(5, lambda: _ignores_interrupts(process.pid))
        return process

    return start


def _ignores_interrupts(pid: int) -> bool:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn"))
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_interrupts_are_for_others(stand_ins: StandIns, watch: Callable[..., subprocess.Popen[bytes]]) -> None:
    """Ctrl-C and systemd tell the whole group; then the watch is needed most."""
    server, stub = stand_ins.server("--deaf"), stand_ins.stub()
    process = watch(server, stub)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None
    began = time.monotonic()
    _, said = process.communicate(timeout=10)
    assert ended_by(server) == KILLED and ended_by(stub) == KILLED
    assert dead_stub_watch.GRACE_SECONDS <= time.monotonic() - began < dead_stub_watch.GRACE_SECONDS + 1.5
    assert (process.returncode, said.splitlines()) == (
        0,
        [b"m: killing the server, whose open requests would never end"],
    )


def test_a_log_that_nobody_reads_stops_no_watch(
    stand_ins: StandIns, watch: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """tritonserver 2>&1 | tee: both ends of the pipe die with the terminal."""
    server, stub = stand_ins.server(), stand_ins.stub()
    process = watch(server, stub)
    process.stderr.close()  # type: ignore[union-attr]
    server.kill()
    server.wait()
    assert ended_by(stub) == KILLED
    process.wait(5)
