"""How does one command serve a model: check, start, show an answer, stay, stop."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from swift_backend.config import resolve_dtype, stored_dtype
from swift_backend.errors import SwiftError
from swift_backend.model.checkpoint import resolve_model
from swift_backend.serving.cache_folder import cache_folder
from swift_backend.serving.demo import stream_demo
from swift_backend.serving.foreground import own_foreground
from swift_backend.serving.launch_error import LaunchError
from swift_backend.serving.launch_options import LaunchOptions, parse_options
from swift_backend.serving.paste_lines import paste_text
from swift_backend.serving.preflight import check_ports, check_repository, check_shared_memory
from swift_backend.serving.server_command import ServerSpec
from swift_backend.serving.server_log import LogTail, forget_old_logs
from swift_backend.serving.server_process import ServerProcess
from swift_backend.serving.stop_signals import stop_signals_interrupt
from swift_backend.serving.triton_install import find_triton

MODEL_NAME = "swift"


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until a stop signal (exit code 0) or until something is wrong (1, with one message)."""
    options = parse_options(sys.argv[1:] if argv is None else argv, os.environ)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with stop_signals_interrupt(), own_foreground() if options.foreground else contextlib.nullcontext():
        try:
            serve(options, console)
        except KeyboardInterrupt:
            console.print("Stopped.")
            return 0
        except SwiftError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


def serve(options: LaunchOptions, console: Console) -> None:
    """Runs a server until it is interrupted; raises LaunchError, or ModelLoadError, if it cannot go on."""
    cache = cache_folder(os.environ)
    spec = plan_server(options, cache)
    forget_old_logs(cache / "logs")
    server = ServerProcess(spec, cache / "logs" / f"triton-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log")
    tail = LogTail(server.log_path)

    def show_log() -> None:
        if options.verbose:
            console.out(tail.new_text(), end="")

    try:
        console.print(f"Starting Triton (log: {server.log_path})")
        server.start()
        with waiting(console, f"Loading {spec.environment['SWIFT_MODEL']}"):
            server.wait_until_ready(MODEL_NAME, options.ready_timeout, show_log)
        greet(options, console)
        server.wait_for_death(show_log)
    finally:
        console.print("Stopping Triton …")
        server.stop()


def plan_server(options: LaunchOptions, cache: Path) -> ServerSpec:
    """Checks everything that can go wrong, the quick checks first; raises LaunchError or ModelLoadError."""
    check_repository(options.model_repository)
    check_ports(options.endpoints)
    check_shared_memory()
    install = find_triton(cache)
    # Converting here, once, keeps the load inside Triton short and shows its progress.
    model = resolve_model(options.model, stored_dtype(resolve_dtype(options.dtype or "auto")))
    environment = {"SWIFT_MODEL": str(model), **({"SWIFT_DTYPE": options.dtype} if options.dtype else {})}
    return ServerSpec(
        install, options.model_repository, options.endpoints, environment, options.arguments, options.exit_timeout
    )


@contextlib.contextmanager
def waiting(console: Console, what: str) -> Iterator[None]:
    """Shows a spinner on a terminal, a plain line elsewhere; says how long it took if it went well."""
    start = time.monotonic()
    if console.is_terminal:
        with console.status(f"{what} …"):
            yield
    else:
        console.print(f"{what} …")
        yield
    console.print(f"Ready after {time.monotonic() - start:.1f} s")


def greet(options: LaunchOptions, console: Console) -> None:
    """Shows one answer and how to ask for more; a failing demo is reported but does not end the server."""
    if options.demo:
        try:
            console.print(str(stream_demo(options.endpoints.http_url)))
        except LaunchError as error:
            console.print(f"The demo request failed. {error}")
    at = options.endpoints
    console.print(f"\n{paste_text(at)}\n")
    console.print(f"Serving on HTTP {at.http_port}, gRPC {at.grpc_port}, metrics {at.metrics_port}. Ctrl-C stops it.")


if __name__ == "__main__":
    sys.exit(main())
