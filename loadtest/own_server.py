"""Which server does a measurement start for itself? Its model and dtype, from the command line."""

from __future__ import annotations

import argparse


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """--model and --dtype."""
    parser.add_argument("--model", help="directory, hub id or .gguf file; the default model if left out")
    parser.add_argument("--dtype", default="bfloat16")


def model_environment(arguments: argparse.Namespace) -> dict[str, str]:
    """What tells the server of these options."""
    model = {"SWIFT_MODEL": arguments.model} if arguments.model else {}
    return {"SWIFT_DTYPE": arguments.dtype, **model}
