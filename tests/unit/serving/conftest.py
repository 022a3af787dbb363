"""A server that costs milliseconds: a script that takes Triton's place."""

import sys
from pathlib import Path

import pytest

from swift_backend.serving.endpoints import free_endpoints
from swift_backend.serving.server_command import ServerSpec
from swift_backend.serving.triton_install import TritonInstall

# It listens where it is told to, leaves a file in shared memory, and has a child that outlives it, as stubs do.
FAKE_TRITON = f"""#!{sys.executable} -IS
import http.server, os, pathlib, signal, subprocess, sys, time
options = dict(item.lstrip("-").split("=", 1) for item in sys.argv[1:])
prefix = options["backend-config"].partition("shm-region-prefix-name=")[2]
pathlib.Path("/dev/shm", prefix + "region").write_text("left over")
subprocess.Popen(["sleep", "60"])
if "fail" in options:
    print("I1130 00:00:00.000000 1 all is well")
    print("E1130 00:00:00.000000 1 model.cc:1] failed to load 'swift': No module named 'x'\\\\n\\\\nAt: model.py(1)")
    sys.exit(3)
if "deaf" in options:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
if "never-ready" in options:
    time.sleep(60)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        print("asked for", self.path, flush=True)
http.server.HTTPServer((options["http-address"], int(options["http-port"])), Handler).serve_forever()
"""


@pytest.fixture
def fake_triton(tmp_path) -> Path:
    path = tmp_path / "tritonserver"
    path.write_text(FAKE_TRITON)
    path.chmod(0o755)
    return path


@pytest.fixture
def spec(fake_triton, tmp_path) -> ServerSpec:
    install = TritonInstall(fake_triton, tmp_path / "backends", (tmp_path / "lib",))
    return ServerSpec(install, tmp_path / "repository", free_endpoints(), exit_timeout=0.5)
