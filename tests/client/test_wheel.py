"""The wheel by itself, in an environment of its own: it installs, imports and answers, and brings no torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import importlib.metadata, importlib.util, pathlib, swift_client
from swift_client import FakeTransport, SwiftClient
assert "site-packages" in swift_client.__file__, swift_client.__file__
assert (pathlib.Path(swift_client.__file__).parent / "py.typed").exists()
assert not any(map(importlib.util.find_spec, ("torch", "swift_backend", "transformers", "tritonserver")))
with SwiftClient(transport=FakeTransport(["a", "b"])) as client:
    print(client.generate("x").text)
SwiftClient("grpc://localhost:1").close()
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=500, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_the_wheel_in_a_fresh_environment(tmp_path: Path) -> None:
    source = shutil.copytree(ROOT / "client", tmp_path / "client", ignore=shutil.ignore_patterns("*.egg-info", "build"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    built = run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / "dist", source, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    [wheel] = (tmp_path / "dist").glob("swift_client-*-py3-none-any.whl")
    assert run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path).returncode == 0
    python = tmp_path / "venv" / "bin" / "python"
    install = ("-m", "pip", "--disable-pip-version-check", "install", "-q", "--retries", "1", "-c")
    installed = run(python, *install, ROOT / "constraints.txt", wheel, cwd=tmp_path)
    if installed.returncode and any(word in installed.stderr for word in ("No matching distribution", "connection")):
        pytest.skip(f"no package index can be reached: {installed.stderr.strip().splitlines()[-1]}")
    assert installed.returncode == 0, installed.stderr
    ran = run(python, "-c", PROGRAM, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert (ran.returncode, ran.stdout) == (0, "ab\n"), ran.stderr
    for command in ("swift-chat", "swift-generate"):
        helped = run(tmp_path / "venv" / "bin" / command, "--help", cwd=tmp_path)
        assert helped.returncode == 0 and command in helped.stdout
    asked = run(tmp_path / "venv" / "bin" / "swift-generate", "--url", "http://localhost:9", cwd=tmp_path, input="x")
    assert asked.returncode == 5 and "error: " in asked.stderr
