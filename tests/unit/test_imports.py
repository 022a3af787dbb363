"""Imports point one way, and public names are the ones that are listed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "swift_backend"
# A module may import from its own level and from those after it; speculation's plain data is lower than its drafters.
LEVELS = [
    {"serving"},
    {"inspect", "llm", "engine_thread", "optimize"},
    {"engine"},
    {"layer_knowledge"},
    {
        "loading",
        "scheduler",
        "stopping",
        "speculation",
        "admission",
        "pace",
        "lobby",
        "metrics",
        "starting",
        "verification",
        "pool_keeper",
        "draft_head",
    },
    {"parallel"},
    {"text", "runner", "pass_times"},
    {"prefix_cache"},
    {"model", "kv_cache", "batch", "sampling", "logprobs", "inbox"},
    {"processors", "filters", "gumbel_max"},
    {"noise"},
    {
        "sequence",
        "request_stats",
        "params",
        "request_keys",
        "config",
        "errors",
        "failure",
        "cores",
        "memory",
        "metric_families",
        "stored_json",
    },
    {"cgroup"},
]
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def imported(path: Path) -> set[str]:
    """Names right below swift_backend, or top-level packages, that a module imports, not for types only."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    nodes = [node for node in ast.walk(tree) if id(node) not in typing_only]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return names


def level(path: Path) -> int:
    return LEVEL_OF[path.relative_to(PACKAGE).parts[0].removesuffix(".py")]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_arrow_is_reversed(path: Path) -> None:
    own = [name.split(".")[1] for name in imported(path) if name.startswith("swift_backend.")]
    assert [name for name in own if LEVEL_OF[name] < level(path)] == []


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_serving_knows_triton(path: Path) -> None:
    triton = {name for name in imported(path) if "triton" in name.split(".")[0]}
    assert path.is_relative_to(PACKAGE / "serving") or not triton


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_client_is_a_package_apart(path: Path) -> None:
    """Its own imports: tests/client/test_public_face.py."""
    assert not {name for name in imported(path) if name.split(".")[0] in ("swift_client", "tritonclient")}


def test_public_names_are_sorted_and_there() -> None:
    import swift_backend

    assert swift_backend.__all__ == sorted(swift_backend.__all__)
    assert all(isinstance(getattr(swift_backend, name), type) for name in swift_backend.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        swift_backend.Engine  # noqa: B018


def test_the_configuration_is_read_without_torch() -> None:
    """The launcher and the tokenizer step start in a blink, and hold no torch in memory."""
    code = "import sys; import swift_backend.config, swift_backend.params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=False).returncode == 0
