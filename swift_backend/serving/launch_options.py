"""What did the user ask the launcher for?"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swift_backend.serving.endpoints import Endpoints
from swift_backend.serving.server_command import PROJECT_ROOT


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The command line, parsed; `model` and `dtype` are None where nobody chose."""

    model: str | None
    dtype: str | None
    endpoints: Endpoints
    model_repository: Path
    demo: bool
    verbose: bool
    foreground: bool
    ready_timeout: float
    exit_timeout: float
    arguments: tuple[str, ...]


def parse_options(argv: Sequence[str], environment: Mapping[str, str]) -> LaunchOptions:
    """Reads the command line, with SWIFT_MODEL and SWIFT_DTYPE as defaults; exits with 2 for a wrong one."""
    own, extra = _split_at_dashes(argv)
    parsed = _parser().parse_args(own)
    return LaunchOptions(
        model=parsed.model or environment.get("SWIFT_MODEL") or None,
        dtype=parsed.dtype or environment.get("SWIFT_DTYPE") or None,
        endpoints=Endpoints(parsed.host, parsed.http_port, parsed.grpc_port, parsed.metrics_port),
        model_repository=parsed.model_repository.resolve(),
        demo=parsed.demo,
        verbose=parsed.verbose,
        foreground=parsed.foreground,
        ready_timeout=parsed.ready_timeout,
        exit_timeout=parsed.exit_timeout,
        arguments=tuple(extra),
    )


def _split_at_dashes(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if "--" not in argv:
        return argv, ()
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m swift_backend.serving.launcher",
        description="Serves a model with Triton until Ctrl-C. What follows -- goes to tritonserver.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", help="directory, hub id or .gguf file (default: SmolLM2-135M-Instruct)")
    add("--dtype", choices=("auto", "float32", "bfloat16", "float16"), help="of the weights (default: auto)")
    add("--host", default="0.0.0.0", help="address to listen on (default: every one)")
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        add(f"--{name}-port", type=_port, default=port, metavar="PORT", help=f"default: {port}")
    add("--model-repository", type=Path, default=PROJECT_ROOT / "model_repository", metavar="DIR")
    add("--no-demo", dest="demo", action="store_false", help="do not send a first request")
    add("--verbose", action="store_true", help="show Triton's log")
    add("--foreground", action="store_true", help="take Ctrl-C away from a surrounding make")
    add("--ready-timeout", type=_seconds, default=900.0, metavar="SECONDS", help="for loading (default: 900)")
    add("--exit-timeout", type=_seconds, default=15.0, metavar="SECONDS", help="for a clean stop (default: 15)")
    return parser


def _port(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"a port must be in [1, 65535], got {number}")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"seconds must be above 0, got {text}")
    return number
