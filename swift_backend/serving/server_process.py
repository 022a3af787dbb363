"""How does one tritonserver live: start, become ready, end without a trace?"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from swift_backend.serving import die_with_parent
from swift_backend.serving.cache_folder import cache_folder
from swift_backend.serving.endpoints import Endpoints, free_endpoints
from swift_backend.serving.launch_error import LaunchError
from swift_backend.serving.preflight import check_repository, check_shared_memory
from swift_backend.serving.process_group import end_group
from swift_backend.serving.server_command import PROJECT_ROOT, ServerSpec, command_line, server_environment
from swift_backend.serving.server_log import failure_lines
from swift_backend.serving.shared_memory import new_region_prefix, remove_regions
from swift_backend.serving.stop_signals import stop_signals_held
from swift_backend.serving.triton_install import find_triton

_LOOK_SECONDS = 0.1


def _do_nothing() -> None:
    """The default of what to do between two looks at the server."""


class ServerProcess:
    """One tritonserver in a session of its own, with its stubs; who starts it must stop it.

    Should the starting thread die first, the kernel asks the server to stop.
    """

    def __init__(self, spec: ServerSpec, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self.region_prefix = new_region_prefix()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's process id, which is its group's and its session's too."""
        if self._process is None:
            raise LaunchError("The server was not started.")
        return self._process.pid

    def start(self) -> None:
        """Starts the server and returns at once; its output goes to the log."""
        wrapper = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
        with self.log_path.open("wb") as log, stop_signals_held():
            self._process = subprocess.Popen(
                [*wrapper, *command_line(self.spec, self.region_prefix)],
                env=server_environment(self.spec, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_ready(self, model: str | None, timeout: float, meanwhile: Callable[[], None] = _do_nothing) -> None:
        """Returns once the server, and `model` if given, are ready; raises LaunchError with the log's errors."""
        deadline = time.monotonic() + timeout
        paths = ["/v2/health/ready", *([f"/v2/models/{model}/ready"] if model else [])]
        with httpx.Client(base_url=self.spec.endpoints.http_url, timeout=2, trust_env=False) as client:
            while not all(_answers(client, path) for path in paths):
                self._check_alive("Triton could not start")
                if time.monotonic() > deadline:
                    raise LaunchError(self._with_log(f"Triton was not ready after {timeout:.0f} s"))
                meanwhile()
                time.sleep(_LOOK_SECONDS)

    def wait_for_death(self, meanwhile: Callable[[], None] = _do_nothing) -> None:
        """Stays while the server runs; raises LaunchError with the log's errors once it has ended by itself."""
        while True:
            self._check_alive("Triton ended by itself")
            meanwhile()
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """Asks the server to stop, then ends whatever is left of it; a second interrupt skips the asking.

        Afterwards none of its processes and none of its files in shared memory exist.
        """
        if self._process is None:
            return
        try:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self.spec.exit_timeout)
        finally:
            with stop_signals_held():
                end_group(self._process.pid)
                self._process.wait()
                remove_regions(self.region_prefix)

    def _check_alive(self, what: str) -> None:
        code = None if self._process is None else self._process.poll()
        if code is not None:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise LaunchError(self._with_log(f"{what} ({how})"))

    def _with_log(self, what: str) -> str:
        lines = failure_lines(self.log_path.read_text(errors="replace"))
        return "\n".join(
            [f"{what}. Its log says:", *(f"  {line}" for line in lines), f"The whole log: {self.log_path}"]
        )


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A ready server on free ports of this machine, for tests."""

    endpoints: Endpoints
    pid: int
    log_path: Path

    @property
    def http_url(self) -> str:
        """`http://127.0.0.1:PORT`."""
        return self.endpoints.http_url

    @property
    def grpc_url(self) -> str:
        """`grpc://127.0.0.1:PORT`, as SwiftClient takes it."""
        return self.endpoints.grpc_url

    @property
    def grpc_target(self) -> str:
        """`127.0.0.1:PORT`, as tritonclient takes it."""
        return self.endpoints.grpc_target

    @property
    def metrics_url(self) -> str:
        """`http://127.0.0.1:PORT/metrics`."""
        return self.endpoints.metrics_url


@contextlib.contextmanager
def running_server(
    model_repository: Path = PROJECT_ROOT / "model_repository",
    *,
    environment: Mapping[str, str] | None = None,
    arguments: tuple[str, ...] = (),
    model: str | None = "swift",
    ready_timeout: float = 120.0,
    exit_timeout: float = 15.0,
) -> Iterator[RunningServer]:
    """Runs a server on free ports of 127.0.0.1 while the block runs, and leaves nothing of it behind.

    environment: added to the caller's, such as SWIFT_MODEL. model: must be ready before the block starts.
    The log is deleted with the block. Raises LaunchError if it cannot start.
    """
    check_repository(model_repository)
    check_shared_memory()
    install = find_triton(cache_folder(os.environ))
    spec = ServerSpec(install, model_repository, free_endpoints(), environment or {}, arguments, exit_timeout)
    with tempfile.TemporaryDirectory(prefix="swift-server-") as folder:
        server = ServerProcess(spec, Path(folder, "triton.log"))
        try:
            server.start()
            server.wait_until_ready(model, ready_timeout)
            yield RunningServer(spec.endpoints, server.pid, server.log_path)
        finally:
            server.stop()


def _answers(client: httpx.Client, path: str) -> bool:
    try:
        return client.get(path).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
