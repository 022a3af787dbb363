"""Does the container's recipe follow the rules of hadolint, and does it copy only what its context holds?"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def hadolint() -> str:
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if found is None:
        pytest.skip("hadolint is not installed: make install brings it")
    return found


def lint(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([hadolint(), "-"], input=text, capture_output=True, text=True, timeout=60, check=False)


def test_hadolint_finds_nothing():
    outcome = lint((ROOT / "Dockerfile").read_text())
    assert (outcome.returncode, outcome.stdout) == (0, "")


def test_hadolint_would_find_something():
    outcome = lint("FROM debian:latest\nRUN cd /tmp\n")
    assert outcome.returncode == 1
    assert "DL3007" in outcome.stdout


def test_what_is_copied_passes_the_dockerignore():
    copies = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    wanted = {name for line in copies for name in line.split()}
    kept = {
        line.lstrip("!").rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    assert wanted == kept


def test_the_server_does_not_run_as_root():
    assert re.findall(r"^USER (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE) == ["10001:10001"]
