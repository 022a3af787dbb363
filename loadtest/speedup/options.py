"""What can be asked of `python -m loadtest.speedup`?"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.load.sample import SAMPLE
from loadtest.speedup.measuring import PLAIN
from loadtest.speedup.prompts import SEGMENTS
from swift_backend.request_keys import SPECULATION_MODES

# What a run must have in common with the one it goes on with; the prompts are compared, too.
SETTINGS = (
    "model", "dtype", "methods", "max_tokens", "temperature", "seed", "batch", "ignore_eos", "max_draft_tokens",
    "confidence_threshold", "layer_sets",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser("loadtest.speedup", description=_ABOUT)
    add: Callable[..., Any] = made.add_argument
    add("--model", help="directory, hub id or .gguf file; the default model if left out")
    add("--dtype", default="bfloat16")
    add("--dataset", type=Path, action="append", metavar="FILE.jsonl", help="repeatable; default: a small sample")
    add("--methods", type=methods, metavar="off,fixed,…", help="default: off,fixed,similarity,auto, or for a stream "
        "off,auto,similarity, and static where there are --layer-sets")  # fmt: skip
    add("--max-tokens", type=positive, default=64)
    add("--per-category", type=positive, default=2, help="prompts of each; of a stream, of each segment")
    add("--max-prompt-tokens", type=positive, help="longer ones are left out (default: half of the context)")
    add("--temperature", type=float, default=0.0)
    add("--seed", type=int, default=0)
    add("--batch", type=positive, default=1)
    add("--prompt-format", choices=("chat", "raw"), help="chat where the model has a template")
    add("--ignore-eos", action="store_true")
    add("--max-draft-tokens", type=int, help="of every method; the server's if left out")
    add("--confidence-threshold", type=float)
    add("--rows", choices=("category", "guide"), default="category", help="guide: HumanEval, GSM8K, CNN/DM, …")
    add("--mixed", action="store_true", help="one prompt of each category after another, in place of all of them")
    add("--stream", type=segments, metavar="code,chat,…", help=f"segments of one kind each: {', '.join(SEGMENTS)}, "
        "or a category")  # fmt: skip
    add("--memory", action="store_true", help="measure memory, too, with off and with auto, or the last method")
    add("--layer-sets", type=Path, help="made by swift_backend.optimize; static needs it")
    add("--json", type=Path, help="written after every batch")
    add("--html", type=Path, help="a page with plots, in one file")
    add("--resume", action="store_true", help="go on with the run that --json has")
    return made


_ABOUT = """How much faster is each way of speculating than none, by kind of text? Methods take turns, prompt by prompt,
in one process, so that a machine that others use too slows all of them alike. Speed is Σ tokens / Σ seconds of
decoding; the time of prompts is left out, and the token that a prompt yields with it."""


def methods(text: str) -> list[str]:
    """`off` first, and each once."""
    names = text.split(",")
    if unknown := [name for name in names if name not in SPECULATION_MODES]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are {', '.join(SPECULATION_MODES)}")
    return list(dict.fromkeys([PLAIN, *names]))


def segments(text: str) -> list[str]:
    """Their names, in order."""
    return [name for name in text.split(",") if name]


def positive(text: str) -> int:
    """A whole number from 1 on."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def settled(arguments: argparse.Namespace) -> str:
    """Fill in what depends on other options; what is wrong with them together, "" if nothing is."""
    arguments.dataset = arguments.dataset or [SAMPLE]
    if arguments.methods is None:
        adapting = [PLAIN, "auto", "similarity", *(["static"] if arguments.layer_sets else [])]
        arguments.methods = adapting if arguments.stream else [PLAIN, "fixed", "similarity", "auto"]
    if "static" in arguments.methods and arguments.layer_sets is None:
        return "--methods static needs --layer-sets FILE, as python -m swift_backend.optimize makes them"
    if arguments.resume and arguments.json is None:
        return "--resume needs --json FILE"
    if arguments.stream and arguments.mixed:
        return "--stream and --mixed are two orders of the same prompts: one of them"
    return ""
