"""What can be asked of `python -m loadtest.sweep`?"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swift_client.core.endpoint import Endpoint

from loadtest.load.shapes import SHAPES
from loadtest.load.thresholds import add_options
from loadtest.load.workloads import WORKLOADS
from swift_backend.request_keys import SPECULATION_MODES

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser("loadtest.sweep", description=_ABOUT)
    add: Callable[..., Any] = made.add_argument
    add("--url", default="grpc://localhost:8001", help="of the server: grpc://… or http://…")
    add("--users", type=users, default=[1, 2, 4, 8], metavar="1,2,4,8", help="levels")
    add("--duration", type=duration, default=30.0, metavar="30s", help="of each level")
    add("--dataset", type=Path, action="append", metavar="FILE.jsonl", help="prompts; repeatable")
    add("--workload", choices=list(WORKLOADS), default="mixed", help="; ".join(
        f"{one.name}: {one.about}" for one in WORKLOADS.values()))  # fmt: skip
    add("--shape", choices=list(SHAPES), default="constant", help="; ".join(
        f"{one.name}: {one.about}" for one in SHAPES.values()))  # fmt: skip
    add("--max-tokens", type=tokens, help="of an answer; the workload's if left out")
    add("--speculation", choices=SPECULATION_MODES, default="auto")
    add("--prompt-format", choices=("chat", "raw"), default="chat", help="raw: for models without a chat template")
    add("--seed", type=int, default=0, help="of the order of prompts")
    add("--metrics-url", help="the server's metrics page (default: port 8002 of its host, if there is one)")
    add("--json", type=Path, help="written after every level")
    add("--html", type=Path, help="a page with plots, in one file")
    add("--compare", type=Path, metavar="OTHER.json", help="another sweep, to be shown beside this one")
    add_options(made)
    return made


_ABOUT = """How does a server do under more and more users? Locust runs headless, level by level; what users saw is
compared with what the server counted. Exit status: 1 where a threshold is broken or the figures differ, 130 after
Ctrl-C, which keeps what was measured."""


def users(text: str) -> list[int]:
    """Levels, each at least one user."""
    try:
        found = [int(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"must be numbers from 1 on, as in 1,2,4,8, got {text!r}")
    return found


def tokens(text: str) -> int:
    """At least one: 0 would read as "left out"."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on, got {text!r}")
    return int(text)


def duration(text: str) -> float:
    """Seconds: 30, 30s, 2m, 1h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"must be a time, as in 30s or 2m, got {text!r}")
    return float(match[1]) * UNITS[match[2]]


def metrics_url(url: str, given: str | None) -> str:
    """Of the page of the server's metrics; ValueError where the server's own URL is none."""
    return given or Endpoint.parse(url).metrics_url


def for_locust(arguments: argparse.Namespace) -> list[str]:
    """What the locustfile is told."""
    options = ["--workload", arguments.workload, "--speculation", arguments.speculation]
    options += ["--prompt-format", arguments.prompt_format]
    if arguments.max_tokens is not None:
        options += ["--max-tokens", str(arguments.max_tokens)]
    if arguments.dataset:
        options += ["--dataset", ",".join(str(file) for file in arguments.dataset)]
    return options
