"""Both clients look alike, every example runs, and nothing of the libraries below shows."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import swift_client
from swift_client import AsyncStream, AsyncSwiftClient, FakeTransport, Stream, SwiftClient
from swift_client.core.sampling import OTHER_OPTIONS, GenerateOptions, SamplingOptions

from swift_backend.request_keys import KEYS, SPECULATION_MODES

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "client" / "swift_client"
RENAMED = {"close": "aclose", "__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__",
           "__next__": "__anext__"}  # fmt: skip
LEVELS = ["core", "transports", "sync_calls", "async_calls", "sync_stream", "async_stream", "sync_client",
          "async_client", "terminal"]  # fmt: skip


def modules() -> list[ModuleType]:
    walked = pkgutil.walk_packages(swift_client.__path__, "swift_client.")
    return [swift_client, *(importlib.import_module(found.name) for found in walked)]


def public_methods(kind: type) -> dict[str, Any]:
    named = {name: member for name, member in inspect.getmembers(kind, inspect.isfunction)}
    return {name: member for name, member in named.items() if not name.startswith("_") or name in RENAMED.values()
            or name in RENAMED or name == "__init__"}  # fmt: skip


@pytest.mark.parametrize(("plain", "other"), [(SwiftClient, AsyncSwiftClient), (Stream, AsyncStream)])
def test_the_signatures_are_the_same(plain: type, other: type) -> None:
    ours, theirs = public_methods(plain), public_methods(other)
    assert {RENAMED.get(name, name) for name in ours} == set(theirs)
    for name, method in ours.items():
        if name == "__init__" and plain is Stream:
            continue  # nobody else makes one
        here, there = inspect.signature(method), inspect.signature(theirs[RENAMED.get(name, name)])
        assert str(there).replace("Async", "") == str(here)
    properties = [
        {name for name, member in inspect.getmembers(kind) if isinstance(member, property)} for kind in (plain, other)
    ]
    assert properties[0] == properties[1]


def test_everything_public_is_listed_in_order_and_typed() -> None:
    assert swift_client.__all__ == sorted(swift_client.__all__, key=lambda name: (not name.isupper(), name))
    assert (PACKAGE / "py.typed").exists()
    for name in swift_client.__all__:
        thing = getattr(swift_client, name)
        for method in public_methods(thing).values() if inspect.isclass(thing) else []:
            shown = str(inspect.signature(method))
            assert not re.search(r"grpc\.|tritonclient|httpx|service_pb2", shown)


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_every_example_runs(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    "name", [name for name in swift_client.__all__ if inspect.isclass(getattr(swift_client, name))]
)
def test_every_public_class_has_an_example(name: str) -> None:
    kind = getattr(swift_client, name)
    if kind.__module__ == "swift_client.core.sampling":  # dictionaries of types, shown by what takes them
        return
    assert ">>>" in (kind.__doc__ or "")


def test_the_options_are_the_servers_keys_and_no_ranges() -> None:
    assert set(SamplingOptions.__annotations__) == set(KEYS)
    assert set(GenerateOptions.__annotations__) == set(KEYS) | OTHER_OPTIONS
    assert set(re.findall(r"'(\w+)'|\"(\w+)\"", str(swift_client.core.sampling.Speculation))) == {
        (mode, "") for mode in SPECULATION_MODES
    }


def test_the_shells_are_thin() -> None:
    for name in ("sync_client", "async_client", "sync_stream", "async_stream", "sync_calls", "async_calls"):
        assert len((PACKAGE / f"{name}.py").read_text().splitlines()) < 200


def imports_of(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    """And reach neither torch nor the server's package."""
    names = imports_of(path)
    assert not {name.split(".")[0] for name in names} & {"torch", "swift_backend", "loadtest", "transformers"}
    if path.name == "__init__.py":
        return
    level = LEVELS.index(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))
    own = {name.split(".")[1] for name in names if name.startswith("swift_client.")}
    assert [name for name in own if LEVELS.index(name) > level] == []


def test_the_core_knows_no_socket_thread_or_clock() -> None:
    known = {name for path in (PACKAGE / "core").rglob("*.py") for name in imports_of(path)}
    assert not known & {"asyncio", "threading", "socket", "time", "httpx", "grpc", "anyio", "rich"}


def test_a_client_over_http_loads_no_grpc_and_nobody_torch() -> None:
    code = (
        "import sys; from swift_client import SwiftClient; SwiftClient('http://h').close();"
        "assert 'grpc' not in sys.modules;"
        "SwiftClient('grpc://h').close(); import swift_client.terminal.chat_command;"
        "sys.exit('torch' in sys.modules or 'swift_backend' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "client", check=False).returncode == 0


def test_the_fake_serves_both_clients() -> None:
    transport = FakeTransport(["a", "b"])
    with SwiftClient(transport=transport) as client:
        assert client.generate("x").text == "ab"
    assert transport.requests[0].inputs["text_input"] == "x" and transport.running == 0


@pytest.mark.parametrize("name", ["README.md", "client/README.md"])
def test_the_readmes_examples_compile_and_name_what_exists(name: str) -> None:
    for code in re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module == "swift_client":
                assert {alias.name for alias in node.names} <= set(swift_client.__all__)
