from pathlib import Path

import pytest

from swift_backend.serving.endpoints import Endpoints
from swift_backend.serving.launch_options import parse_options
from swift_backend.serving.server_command import PROJECT_ROOT


def test_defaults():
    options = parse_options([], {})
    assert options.endpoints == Endpoints("0.0.0.0", 8000, 8001, 8002)
    assert options.model_repository == PROJECT_ROOT / "model_repository"
    assert (options.model, options.dtype, options.arguments) == (None, None, ())
    assert (options.demo, options.verbose, options.foreground) == (True, False, False)
    assert (options.ready_timeout, options.exit_timeout) == (900.0, 15.0)


def test_everything_given(tmp_path):
    text = "--model m --dtype float32 --host 127.0.0.1 --http-port 1 --grpc-port 2 --metrics-port 3 --no-demo --verbose"
    more = ["--exit-timeout", "3", "--model-repository", str(tmp_path), "--", "--log-verbose=1", "--model", "x"]
    options = parse_options([*text.split(), *more], {"SWIFT_MODEL": "not this"})
    assert (options.model, options.dtype) == ("m", "float32")
    assert options.endpoints == Endpoints("127.0.0.1", 1, 2, 3)
    assert (options.demo, options.verbose, options.exit_timeout) == (False, True, 3.0)
    assert options.model_repository == tmp_path
    assert options.arguments == ("--log-verbose=1", "--model", "x")


def test_a_relative_repository_is_made_absolute():
    assert parse_options(["--model-repository", "here"], {}).model_repository == Path.cwd() / "here"


def test_the_environment_is_the_default_of_a_container():
    options = parse_options([], {"SWIFT_MODEL": "m", "SWIFT_DTYPE": "bfloat16"})
    assert (options.model, options.dtype) == ("m", "bfloat16")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--http-port", "0"], "a port must be in [1, 65535], got 0"),
        (["--http-port", "65536"], "a port must be in [1, 65535], got 65536"),
        (["--http-port", "x"], "argument --http-port"),
        (["--exit-timeout", "0"], "seconds must be above 0, got 0"),
        (["--dtype", "int8"], "invalid choice: 'int8'"),
        (["--mod", "m"], "unrecognized arguments: --mod m"),
    ],
)
def test_wrong_options(capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        parse_options(arguments, {})
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
