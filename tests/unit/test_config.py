"""Where an engine option comes from, and what is said of a wrong one."""

from __future__ import annotations

from typing import Any

import pytest

from swift_backend.config import EngineConfig, resolve_dtype, stored_dtype
from swift_backend.errors import ConfigError


def test_environment_before_parameter_before_default() -> None:
    config = EngineConfig.from_sources(
        {"max_running": "4", "dtype": "float32", "model": ""}, {"SWIFT_MAX_RUNNING": "9", "OTHER": "1"}
    )
    assert (config.max_running, config.dtype, config.model, config.max_step_tokens) == (9, "float32", None, 512)


def test_options_of_serving_under_load() -> None:
    texts = {"kv_cache_share": "0.5", "prefix_cache": "False", "timeout_ms": "60000", "threads": "3"}
    switches = {"metrics": "0", "exit_on_failure": "FALSE"}
    expected = EngineConfig(
        kv_cache_share=0.5, prefix_cache=False, timeout_ms=60000, threads=3, metrics=False, exit_on_failure=False
    )
    assert EngineConfig.from_sources({**texts, **switches}, {}) == expected
    environment = {f"SWIFT_{name.upper()}": text for name, text in {**texts, **switches}.items()}
    assert EngineConfig.from_sources({}, environment) == expected


def test_what_serving_under_load_does_by_default() -> None:
    config = EngineConfig.from_sources({"timeout_ms": "", "metrics": ""}, {"SWIFT_THREADS": ""})
    assert (config.kv_cache_share, config.timeout_ms, config.threads) == (None, None, None)
    assert (config.prefix_cache, config.metrics, config.exit_on_failure) == (True, True, True)


def test_the_edges_are_fine() -> None:
    config = EngineConfig.from_options(kv_cache_share=1, timeout_ms=1, threads=1)
    assert (config.kv_cache_share, config.timeout_ms, config.threads) == (1, 1, 1)
    assert EngineConfig.from_sources({"kv_cache_share": "1e-9"}, {}).kv_cache_share == 1e-9


def test_types_are_read_from_text() -> None:
    config = EngineConfig.from_sources({"debug": "true", "skip_ratio": "0.3", "kv_cache_tokens": "100"}, {})
    assert (config.debug, config.skip_ratio, config.kv_cache_tokens) == (True, 0.3, 100)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_runing": "3"}, "unknown engine option 'max_runing'"),
        ({"max_running": "many"}, "max_running cannot be read from 'many'"),
        ({"debug": "maybe"}, "debug cannot be read from 'maybe'"),
        ({"max_running": "0"}, "max_running must be >= 1, got 0"),
        ({"dtype": "int4"}, "dtype must be one of auto, float32, bfloat16, float16, int8, got 'int4'"),
        ({"numerics": "exact"}, "numerics must be one of auto, fast, invariant, got 'exact'"),
        ({"acceptance": "typical"}, "acceptance must be one of coupled, rejection, got 'typical'"),
        ({"skip_ratio": "1"}, r"skip_ratio must be in \[0, 1\), got 1.0"),
        ({"kv_cache_tokens": "1"}, "kv_cache_tokens must be >= 2, got 1"),
        ({"max_draft_tokens": "-1"}, "max_draft_tokens must be >= 0, got -1"),
        ({"kv_cache_share": "0"}, r"kv_cache_share must be in \(0, 1\], got 0.0"),
        ({"kv_cache_share": "1.01"}, r"kv_cache_share must be in \(0, 1\], got 1.01"),
        ({"kv_cache_share": "nan"}, r"kv_cache_share must be in \(0, 1\], got nan"),
        ({"kv_cache_share": "half"}, "kv_cache_share cannot be read from 'half'"),
        ({"timeout_ms": "0"}, "timeout_ms must be >= 1, got 0"),
        ({"timeout_ms": "1.5"}, "timeout_ms cannot be read from '1.5'"),
        ({"threads": "0"}, "threads must be >= 1, got 0"),
        ({"threads": "all"}, "threads cannot be read from 'all'"),
        ({"tensor_parallel": "0"}, "tensor_parallel must be >= 1, got 0"),
        ({"tensor_parallel": "two"}, "tensor_parallel cannot be read from 'two'"),
        ({"prefix_cache": "2"}, "prefix_cache cannot be read from '2'"),
        ({"max_step_tokens": "1"}, "max_step_tokens must be >= 2, got 1"),
        ({"metrics": "on"}, "metrics cannot be read from 'on'"),
        ({"exit_on_failure": "never"}, "exit_on_failure cannot be read from 'never'"),
    ],
)
def test_a_wrong_option_is_named(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_sources(parameters, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_running": "4"}, "max_running must be a whole number, got '4'"),
        ({"max_running": True}, "max_running must be a whole number, got True"),
        ({"max_running": None}, "max_running must be a whole number, got None"),
        ({"max_step_tokens": 2.5}, "max_step_tokens must be a whole number, got 2.5"),
        ({"kv_cache_tokens": 10.5}, "kv_cache_tokens must be a whole number or None, got 10.5"),
        ({"skip_ratio": "x"}, "skip_ratio must be a number or None, got 'x'"),
        ({"skip_ratio": float("nan")}, r"skip_ratio must be in \[0, 1\), got nan"),
        ({"debug": 1}, "debug must be true or false, got 1"),
        ({"model": 7}, "model must be text or None, got 7"),
        ({"dtype": ["float32"]}, r"dtype must be text, got \['float32'\]"),
        ({"device": None}, "device must be text, got None"),
        ({"device": "gpu0"}, r"device must be auto, cpu or cuda\[:n\], got 'gpu0'"),
        ({"device": "mps"}, r"device must be auto, cpu or cuda\[:n\], got 'mps'"),
        ({"device": "xpu"}, r"device must be auto, cpu or cuda\[:n\], got 'xpu'"),
        ({"device": "meta"}, r"device must be auto, cpu or cuda\[:n\], got 'meta'"),
        ({"device": "cuda:"}, r"device must be auto, cpu or cuda\[:n\], got 'cuda:'"),
        ({"kv_cache_share": -0.5}, r"kv_cache_share must be in \(0, 1\], got -0.5"),
        ({"kv_cache_share": True}, "kv_cache_share must be a number or None, got True"),
        ({"timeout_ms": 1.5}, "timeout_ms must be a whole number or None, got 1.5"),
        ({"threads": "2"}, "threads must be a whole number or None, got '2'"),
        ({"prefix_cache": None}, "prefix_cache must be true or false, got None"),
        ({"metrics": 0}, "metrics must be true or false, got 0"),
        ({"exit_on_failure": "true"}, "exit_on_failure must be true or false, got 'true'"),
        ({"max_runing": 3}, "unknown engine option 'max_runing'; known are acceptance, debug, device"),
    ],
)
def test_a_wrong_option_of_a_caller_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_options(**options)


def test_options_of_a_caller() -> None:
    config = EngineConfig.from_options(model="m", skip_ratio=0, kv_cache_tokens=None, debug=True)
    assert config == EngineConfig("m", skip_ratio=0.0, debug=True)


@pytest.mark.parametrize(
    ("device", "num_devices", "expected"),
    [
        ("auto", 0, "cpu"),
        ("auto", 2, "cuda"),
        ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda"),
        ("cuda:1", 2, "cuda:1"),
        ("cuda", 0, "device is 'cuda', but this machine has no CUDA device"),
        ("cuda:0", 0, "device is 'cuda:0', but this machine has no CUDA device"),
        ("cuda:2", 2, "device is 'cuda:2', but this machine's CUDA devices are 0 to 1"),
    ],
)
def test_the_device(device: str, num_devices: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: num_devices > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_devices)
    config = EngineConfig(device=device)
    if expected.startswith("device is"):
        with pytest.raises(ConfigError, match=f"^{expected}$"):
            config.torch_device()
    else:
        assert str(config.torch_device()) == expected


def test_auto_dtype_is_bfloat16() -> None:
    assert [resolve_dtype(d) for d in ("auto", "float32")] == ["bfloat16", "float32"]
    with pytest.raises(ConfigError, match="dtype must be one of auto, float32, bfloat16, float16, int8, got 'int4'"):
        resolve_dtype("int4")
    assert [stored_dtype(d) for d in ("int8", "float32")] == ["bfloat16", "float32"]
