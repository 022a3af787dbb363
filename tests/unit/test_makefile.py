"""Do the commands say what they cannot do, and skip what is done?"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.speedup import options as speedup_options
from loadtest.sweep import options as sweep_options

ROOT = Path(__file__).parents[2]
INPUTS = ("Makefile", "constraints.txt", "pyproject.toml", "requirements-nodeps.txt", "client/pyproject.toml")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "client").mkdir()
    for name in INPUTS:
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Not the variables of a make around this test: they would change what make prints.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", "-C", str(folder), "--no-print-directory", *arguments],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def pretend_installed(folder: Path) -> None:
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    stamp = make(folder, "-n", "-p", "install").stdout.split("STAMP := ")[1].splitlines()[0]
    (folder / stamp.replace("$(VENV)", ".venv")).touch()


def python_that_says(folder: Path, failing: str) -> Path:
    """A python3 whose run fails whenever its program contains a word."""
    path = folder / "python-stand-in"
    path.write_text(f'#!/bin/sh\ncase "$*" in *{failing}*) exit 1;; esac\nexit 0\n')
    path.chmod(0o755)
    return path


def test_help_names_every_target_of_the_contract(folder):
    printed = make(folder, "help").stdout
    names = [line.split()[1] for line in printed.splitlines()]
    assert names == ["help", "install", "serve", "demo", "test", "check", "lint", "format", "bench", "loadtest"]


@pytest.mark.parametrize(
    ("failing", "message"),
    [
        ("version_info", "error: Python 3.10 to 3.12 is needed"),
        ("ensurepip", "has no venv module: on Debian and Ubuntu apt-get install python3-venv"),
    ],
)
def test_a_python_that_will_not_do_is_one_line(folder, failing, message):
    outcome = make(folder, "install", f"PYTHON={python_that_says(folder, failing)}")
    assert outcome.returncode == 2
    assert message in outcome.stderr
    assert not (folder / ".venv").exists()


def test_a_second_install_does_nothing(folder):
    pretend_installed(folder)
    outcome = make(folder, "install", "PYTHON=/nonexistent")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "pip" not in outcome.stdout


@pytest.mark.parametrize("file", [*INPUTS[1:], "swift_backend/model/csrc/kernel.h"])
def test_another_list_of_packages_or_kernel_is_installed_again(folder, file):
    pretend_installed(folder)
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    with (folder / file).open("a") as changed:
        changed.write("# another\n")
    asked = make(folder, "-n", "install").stdout
    assert "pip install" in asked and "-e ./client" in asked


@pytest.mark.parametrize(
    ("target", "options", "parser"),
    [
        ("bench", ["MODEL=a dir/m.gguf", "ARGS=--seed 3"], speedup_options),
        ("loadtest", ["GRPC_PORT=2", "METRICS_PORT=3", "ARGS=--max-tokens 9"], sweep_options),
    ],
)
def test_small_measurements_ask_for_what_there_is(folder, target, options, parser):
    """Their commands are understood, write into reports/, and take ARGS last."""
    pretend_installed(folder)
    printed = make(folder, "-n", target, *options).stdout.replace("\\\n", " ")
    words = shlex.split(printed)
    asked = parser.parser().parse_args(words[words.index("-m") + 2 :])
    assert asked.json == Path(f"reports/{'speedup' if target == 'bench' else 'sweep'}.json")
    assert asked.html == asked.json.with_suffix(".html")
    if target == "bench":
        assert (asked.model, asked.seed) == ("a dir/m.gguf", 3)
    else:
        assert (asked.url, asked.metrics_url) == ("grpc://localhost:2", "http://localhost:3/metrics")
        assert asked.max_tokens == 9


def test_serve_passes_its_variables_on(folder):
    pretend_installed(folder)
    printed = make(
        folder, "-n", "serve", "MODEL=a dir/m.gguf", "HTTP_PORT=1", "GRPC_PORT=2", "METRICS_PORT=3", "ARGS=-- --x"
    )
    command = " ".join(printed.stdout.replace("\\\n", " ").split())
    expected = '--foreground --model "a dir/m.gguf" --http-port 1 --grpc-port 2 --metrics-port 3 -- --x'
    assert command == f"exec .venv/bin/python -m swift_backend.serving.launcher {expected}"


@pytest.mark.parametrize(("parallel", "alone", "expected"), [(0, 5, 0), (5, 0, 0), (5, 5, 2), (1, 0, 2), (0, 1, 2)])
def test_both_parts_of_the_tests_run_and_either_can_fail(folder, parallel, alone, expected):
    """pytest exits with 5 where ARGS selects nothing of a part; both empty is a wrong ARGS."""
    pretend_installed(folder)
    python = folder / ".venv" / "bin" / "python"
    python.unlink()
    python.write_text(
        f'#!/bin/sh\necho "$*" >>{folder}/asked\ncase "$*" in *worksteal*) exit {parallel};; esac\nexit {alone}\n'
    )
    python.chmod(0o755)
    outcome = make(folder, "test", "ARGS=-k some")
    assert outcome.returncode == expected
    asked = (folder / "asked").read_text().splitlines()
    assert asked == [
        "-m pytest -rs -n 2 --dist worksteal -m not (server or model or gpu) -k some",
        "-m pytest -rs -m server or model or gpu -k some",
    ]
