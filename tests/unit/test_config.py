"""Where an engine option comes from, and what is said of a wrong one."""

from __future__ import annotations

import pytest

from swift_backend.config import EngineConfig, resolve_dtype
from swift_backend.errors import ConfigError


def test_environment_before_parameter_before_default() -> None:
    config = EngineConfig.from_sources(
        {"max_running": "4", "dtype": "float32", "model": ""}, {"SWIFT_MAX_RUNNING": "9", "OTHER": "1"}
    )
    assert (config.max_running, config.dtype, config.model, config.max_step_tokens) == (9, "float32", None, 512)


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
        ({"dtype": "int4"}, "dtype must be one of auto, float32, bfloat16, float16, got 'int4'"),
        ({"acceptance": "typical"}, "acceptance must be one of coupled, rejection, got 'typical'"),
        ({"skip_ratio": "1"}, r"skip_ratio must be in \[0, 1\), got 1.0"),
        ({"kv_cache_tokens": "1"}, "kv_cache_tokens must be >= 2, got 1"),
        ({"max_draft_tokens": "-1"}, "max_draft_tokens must be >= 0, got -1"),
    ],
)
def test_a_wrong_option_is_named(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_sources(parameters, {})


def test_a_device_that_is_not_there() -> None:
    assert EngineConfig(device="cpu").torch_device().type == "cpu"
    with pytest.raises(ConfigError, match="device must be auto, cpu or cuda"):
        EngineConfig(device="gpu0").torch_device()


def test_auto_dtype_is_bfloat16() -> None:
    assert [resolve_dtype(d) for d in ("auto", "float32")] == ["bfloat16", "float32"]
