import sys

import pytest

from swift_backend.serving.launch_error import LaunchError
from swift_backend.serving.libpython import libpython_folder, library_folders, needed_libpython, python_minor


@pytest.mark.parametrize(
    ("name", "minor"), [("libpython3.11.so.1.0", "3.11"), ("libpython3-419a3a08.13.so.1.0", "3.13")]
)
def test_the_name_is_read_from_the_stub(tmp_path, name, minor):
    stub = tmp_path / "stub"
    stub.write_bytes(b"\x7fELF\0libc.so.6\0" + name.encode() + b"\0libstdc++.so.6\0")
    assert needed_libpython(stub) == name
    assert python_minor(name) == minor


def test_something_else_is_no_stub(tmp_path):
    stub = tmp_path / "stub"
    stub.write_bytes(b"\x7fELF\0libc.so.6\0")
    with pytest.raises(LaunchError, match="is not a stub of Triton's Python backend"):
        needed_libpython(stub)


def test_the_first_folder_that_has_it(tmp_path):
    for name in ("empty", "first", "second"):
        (tmp_path / name).mkdir()
    for name in ("first", "second"):
        (tmp_path / name / "libpython3.11.so.1.0").touch()
    folders = [tmp_path / name for name in ("missing", "empty", "first", "second")]
    assert libpython_folder("libpython3.11.so.1.0", folders) == tmp_path / "first"


@pytest.mark.parametrize(
    ("prefix", "advice"),
    [
        ("/home/me/.pyenv/versions/3.11.7", "PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install --force 3.11"),
        ("/usr", "apt-get install libpython3.11"),
    ],
)
def test_missing_everywhere_says_what_to_install(tmp_path, monkeypatch, prefix, advice):
    monkeypatch.setattr(sys, "base_prefix", prefix)
    with pytest.raises(LaunchError, match="^libpython3.11.so.1.0, which .* is not on this machine") as caught:
        libpython_folder("libpython3.11.so.1.0", [tmp_path])
    assert advice in str(caught.value)


def test_debians_folder_is_among_those_searched(monkeypatch):
    variables = {"LIBDIR": "/usr/lib", "MULTIARCH": "x86_64-linux-gnu"}
    monkeypatch.setattr("sysconfig.get_config_var", variables.get)
    assert "/usr/lib/x86_64-linux-gnu" in map(str, library_folders())
