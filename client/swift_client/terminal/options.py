"""What do both commands take from the command line?"""

from __future__ import annotations

import argparse
import json
from typing import Any

from swift_client.core.sampling import OTHER_OPTIONS
from swift_client.core.timeout import Timeout
from swift_client.core.tls import TLS
from swift_client.sync_client import DEFAULT_URL, SwiftClient
from swift_client.transports.protocol import Transport


def add_options(parser: argparse.ArgumentParser) -> None:
    """The server, and what is sampled."""
    parser.add_argument("--url", default=DEFAULT_URL, help=f"grpc://, grpcs://, http:// or https:// ({DEFAULT_URL})")
    parser.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="goes along; repeatable")
    parser.add_argument("--ca", help="file of the authorities to trust")
    parser.add_argument("--timeout", type=float, help="seconds that an answer may take (no limit)")
    parser.add_argument("--system", help="a system message; the prompt is then a chat message")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any sampling key; VALUE as JSON",
    )


def client_of(arguments: argparse.Namespace, transport: Transport | None) -> SwiftClient:
    """ValueError where an option is wrong."""
    headers = dict(_pair(header, ":") for header in arguments.header)
    timeout = Timeout(total=arguments.timeout)
    tls = TLS(ca=arguments.ca) if arguments.ca else None
    return SwiftClient(arguments.url, headers=headers, timeout=timeout, tls=tls, transport=transport)


def sampling_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling keys that were given; ValueError where one is no pair."""
    named = {name: getattr(arguments, name) for name in ("max_tokens", "temperature", "seed")}
    given = {name: value for name, value in named.items() if value is not None}
    for name, text in (_pair(one, "=") for one in arguments.set):
        given[checked_key(name)] = value_of(text)
    return given


def checked_key(name: str) -> str:
    """ValueError for what is an option of the call, and no sampling key; which those are, the server says."""
    if name in OTHER_OPTIONS or name == "prompt":
        raise ValueError(f"{name} is no sampling key")
    return name


def value_of(text: str) -> Any:
    """JSON, or else the text itself: 0.7, true, ["a", "b"], auto."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _pair(text: str, separator: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not found or not name.strip():
        raise ValueError(f"expected NAME{separator}VALUE, got {text!r}")
    return name.strip(), value.strip()
