import importlib.metadata
import importlib.util

import pytest

from swift_backend.serving.backend_directory import STUB
from swift_backend.serving.launch_error import LaunchError
from swift_backend.serving.triton_install import (
    TritonInstall,
    TritonWheel,
    check_numpy,
    container_install,
    find_triton,
    wheel_install,
)


def write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def wheel(tmp_path):
    root = tmp_path / "site" / "pytriton" / "tritonserver"
    write(root / "bin" / "tritonserver").chmod(0o755)
    write(root / "backends" / "python" / "libtriton_python.so")
    for minor in ("3.9", "3.10", "3.99"):
        write(root / "python_backend_stubs" / minor / STUB, f"\0libpython{minor}.so.1.0\0")
    libraries = tmp_path / "site" / "nvidia_pytriton.libs"
    write(libraries / "libpython3.10.so.1.0")
    return TritonWheel(root, libraries, "0.7.0")


@pytest.fixture
def container(tmp_path):
    root = tmp_path / "opt"
    write(root / "bin" / "tritonserver")
    write(root / "backends" / "python" / STUB, "\0libpython3.12.so.1.0\0")
    return root


def test_a_wheel_gets_a_backend_folder_for_this_python(wheel, tmp_path):
    made = wheel_install(wheel, tmp_path / "cache", "3.10")
    backends = tmp_path / "cache" / "triton-0.7.0-py3.10"
    assert made == TritonInstall(wheel.tritonserver / "bin" / "tritonserver", backends, (wheel.libraries,))
    assert "libpython3.10" in (backends / "python" / STUB).read_text()


def test_a_python_without_stub(wheel, tmp_path):
    with pytest.raises(LaunchError, match=r"has no stub for Python 3\.14, only for 3\.9, 3\.10, 3\.99\. Make the env"):
        wheel_install(wheel, tmp_path / "cache", "3.14")


def test_a_python_without_libpython(wheel, tmp_path):
    with pytest.raises(LaunchError, match=r"^libpython3\.99\.so\.1\.0, which Triton's Python backend needs"):
        wheel_install(wheel, tmp_path / "cache", "3.99")


def test_a_container_is_used_as_it_is(container):
    made = container_install(container, "3.12")
    assert made == TritonInstall(container / "bin" / "tritonserver", container / "backends", (container / "lib",))


def test_a_container_with_another_python(container):
    with pytest.raises(LaunchError, match=r"runs models with Python 3\.12, but this is 3\.11\. Start with python3\.12"):
        container_install(container, "3.11")


def test_a_container_without_python_backend(container):
    (container / "backends" / "python" / STUB).unlink()
    with pytest.raises(LaunchError, match="has no Python backend"):
        container_install(container, "3.12")


def test_the_container_comes_first(container, tmp_path, monkeypatch):
    monkeypatch.setattr("swift_backend.serving.triton_install.running_minor", lambda: "3.12")
    assert find_triton(tmp_path / "cache", container).server == container / "bin" / "tritonserver"


def test_no_tritonserver_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(LaunchError, match=r"^No tritonserver found, .* Run `make install`\.$"):
        find_triton(tmp_path / "cache", tmp_path / "nowhere")


def test_numpy_2_is_refused():
    check_numpy("1.26.4")
    with pytest.raises(LaunchError, match=r"garbles tensors with numpy 2\.2\.6"):
        check_numpy("2.2.6")


@pytest.mark.skipif(importlib.util.find_spec("pytriton") is None, reason="nvidia-pytriton is not installed")
def test_the_wheel_of_this_environment(tmp_path):
    made = find_triton(tmp_path / "cache", tmp_path / "nowhere")
    assert made.server.name == "tritonserver"
    assert (made.backends / "python" / "libtriton_python.so").is_file()
    assert any(list(folder.glob("libtritonserver-*.so")) for folder in made.library_path)
    assert made.backends.name.startswith(f"triton-{importlib.metadata.version('nvidia-pytriton')}-py3.")
