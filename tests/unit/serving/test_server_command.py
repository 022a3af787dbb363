import os
import sys
from dataclasses import replace
from pathlib import Path

from swift_backend.serving.server_command import PROJECT_ROOT, command_line, server_environment


def test_the_command(spec):
    at = spec.endpoints
    assert command_line(replace(spec, arguments=("--log-verbose=1",)), "swift_7_") == [
        str(spec.install.server),
        f"--model-repository={spec.model_repository}",
        f"--backend-directory={spec.install.backends}",
        "--backend-config=python,shm-region-prefix-name=swift_7_",
        "--http-address=127.0.0.1",
        f"--http-port={at.http_port}",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={at.grpc_port}",
        "--metrics-address=127.0.0.1",
        f"--metrics-port={at.metrics_port}",
        "--exit-timeout-secs=1",
        "--log-verbose=1",
    ]


def test_a_stub_finds_this_environment_both_ways(spec):
    made = server_environment(spec, {"PATH": "/bin", "PYTHONPATH": "/mine", "HOME": "/root"})
    assert made["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/bin"
    packages = made["PYTHONPATH"].split(os.pathsep)
    assert packages[-2:] == [str(PROJECT_ROOT), "/mine"]
    assert any(Path(folder, "numpy").is_dir() for folder in packages[:-2])
    assert made["HOME"] == "/root"


def test_libraries_lead_and_our_own_variables_win(spec):
    made = server_environment(replace(spec, environment={"SWIFT_MODEL": "b"}), {"SWIFT_MODEL": "a"})
    assert made["LD_LIBRARY_PATH"] == str(spec.install.library_path[0])
    assert made["SWIFT_MODEL"] == "b"


def test_the_project_root_holds_the_package():
    assert (PROJECT_ROOT / "swift_backend" / "serving" / "server_command.py").is_file()
