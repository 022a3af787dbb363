"""What was measured once is not measured again, on the same machine and for the same model."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from swift_backend import SwiftLLM
from swift_backend.runner import Runner
from swift_backend.speculation import cost_store
from swift_backend.speculation.cost_measuring import CostMeasuring
from swift_backend.speculation.cost_model import CostModel, RowCosts
from swift_backend.speculation.cost_store import costs_key, device_name, stored_costs

INTERRUPTIONS = cost_store.interruptions  # the tests' machine counts as quiet, see tests/conftest.py
COSTS = CostModel(
    num_layers=3,
    attention=RowCosts((1, 4), (0.002, 0.0035)),
    mlp=RowCosts((1, 4), (0.003, 0.0031)),
    head=RowCosts((1, 4), (0.01, 0.011)),
    rest=RowCosts((1, 4, 8), (0.0001, 0.0002, 0.0003)),
    per_key=1e-7,
    scale=2.5,
)
KEPT = replace(COSTS, scale=1.0)
SHAPE: dict[str, Any] = {
    "family": "llama",
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_layers": 3,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 8,
    "qkv_bias": False,
    "output_bias": False,
    "mlp_bias": False,
    "qk_norm": None,
    "parallel": False,
    "window": None,
    "windowed": (False, False, False),
    "context_length": 8192,
}


def runner(capacity: int = 4096, device: str = "cpu", kernel: str = "PackedLinear", **shape: Any) -> Runner:
    decoder = SimpleNamespace(config=SimpleNamespace(**{**SHAPE, **shape}), kernel=kernel)
    made = SimpleNamespace(decoder=decoder, cache=SimpleNamespace(capacity=capacity), device=torch.device(device))
    return cast(Runner, made)


class Measure:
    """Counts how often it is asked."""

    def __init__(self, costs: CostModel = COSTS) -> None:
        self.costs, self.times = costs, 0

    def __call__(self) -> CostModel:
        self.times += 1
        return self.costs


def the_file(cache_dir: Path) -> Path:
    [file] = (cache_dir / "costs").iterdir()
    return file


def change(file: Path, changed: Callable[[Any], Any]) -> None:
    document = json.loads(file.read_text())
    document["content"] = changed(document["content"])
    file.write_text(json.dumps(document))


def test_the_second_process_does_not_measure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    measure = Measure()
    assert stored_costs(runner(), "float32", tmp_path, measure) is COSTS
    assert stored_costs(runner(), "float32", tmp_path, measure) == KEPT
    assert measure.times == 1
    assert not caplog.records


def test_how_the_machine_did_at_that_moment_is_not_kept(tmp_path: Path) -> None:
    stored_costs(runner(), "float32", tmp_path, Measure())
    assert "scale" not in the_file(tmp_path).read_text()


def test_what_a_real_model_measures_comes_back_to_the_last_bit(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    real = SwiftLLM(tiny_model("mistral"), "float32", kv_cache_tokens=64).engine.runner
    measured = stored_costs(real, "float32", tmp_path, lambda: CostMeasuring(real).run(0.2))
    assert stored_costs(real, "float32", tmp_path, Measure()) == measured
    assert the_file(tmp_path).name.startswith("mistral-7x48-float32-")


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({}, "bfloat16"),
        ({"vocab_size": 65}, "float32"),
        ({"intermediate_size": 97}, "float32"),
        ({"num_layers": 4}, "float32"),
        ({"num_kv_heads": 3}, "float32"),
        ({"parallel": True}, "float32"),
        ({"qkv_bias": True}, "float32"),
        ({"window": 12, "windowed": (True, False, True)}, "float32"),
        ({"capacity": 20}, "float32"),
        ({"kernel": "PlainLinear"}, "float32"),
    ],
)
def test_another_model_dtype_or_cache_is_measured_itself(tmp_path: Path, changes: dict[str, Any], dtype: str) -> None:
    first, second = Measure(), Measure()
    stored_costs(runner(), "float32", tmp_path, first)
    stored_costs(runner(**changes), dtype, tmp_path, second)
    stored_costs(runner(), "float32", tmp_path, first)
    assert (first.times, second.times) == (1, 1)


def test_another_machine_is_measured_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache may be shared between machines, and outlives an upgrade."""
    keys = {costs_key(runner(), "float32")}
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 77)
        keys.add(costs_key(runner(), "float32"))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9")
        keys.add(costs_key(runner(), "float32"))
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS")
        keys.add(costs_key(runner(), "float32"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA H{device.index}")
    keys |= {costs_key(runner(device=f"cuda:{n}"), "float32") for n in (100, 200)}
    assert len(keys) == 6


def test_what_does_not_matter_is_not_in_the_key() -> None:
    assert costs_key(runner(capacity=4096), "float32") == costs_key(runner(capacity=9999), "float32")
    assert costs_key(runner(context_length=2048), "float32") == costs_key(runner(), "float32")


def test_the_key_is_a_file_name_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200 / ünit" + " long" * 50)
    key = costs_key(runner(device="cuda:0"), "bfloat16")
    readable, _, digest = key.rpartition("-")
    assert readable == "llama-3x48-bfloat16-NVIDIA_H200_nit" + "_long" * 9
    assert len(readable) == 80
    assert len(digest) == 16 and int(digest, 16) >= 0


def test_a_cpu_has_the_name_that_the_kernel_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9B14 \nprocessor\t: 1\nmodel name\t: Other\n"
    )
    assert device_name(cpu, cpuinfo) == "AMD EPYC 9B14"
    cpuinfo.write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
    monkeypatch.setattr("platform.processor", lambda: "arm9")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert device_name(cpu, cpuinfo) == "arm9"
    assert device_name(cpu, tmp_path / "none") == "arm9"
    monkeypatch.setattr("platform.processor", lambda: "")
    assert device_name(cpu, cpuinfo) == "aarch64"


def set_at(*path: str | int) -> Callable[[Any], Callable[[Any], Any]]:
    """set_at("mlp", "rows")(value) puts a value there."""

    def to(value: Any) -> Callable[[Any], Any]:
        def changed(content: Any) -> Any:
            made = copy.deepcopy(content)
            at = made
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = value
            return made

        return changed

    return to


@pytest.mark.parametrize(
    "changed",
    [
        lambda content: [],
        lambda content: "costs",
        lambda content: 7,
        lambda content: {},
        lambda content: {name: part for name, part in content.items() if name != "rest"},
        lambda content: {name: part for name, part in content.items() if name != "per_key"},
        set_at("per_key")("0.1"),
        set_at("per_key")(False),
        set_at("per_key")(-1e-9),
        set_at("per_key")(10**400),
        set_at("mlp")([0.003, 0.0031]),
        set_at("mlp", "rows")(None),
        set_at("mlp", "rows")("14"),
        set_at("mlp", "rows")([]),
        set_at("mlp", "rows")([1]),
        set_at("mlp", "rows")([1, 4, 8]),
        set_at("mlp", "rows")([4, 1]),
        set_at("mlp", "rows")([4, 4]),
        set_at("mlp", "rows")([0, 4]),
        set_at("mlp", "rows")([1, 4.5]),
        set_at("mlp", "rows")([True, 4]),
        set_at("mlp", "rows")([1, 10**400]),
        set_at("mlp", "seconds")({"1": 0.003, "4": 0.0031}),
        set_at("mlp", "seconds", 1)(None),
        set_at("mlp", "seconds", 1)([0.1]),
        set_at("mlp", "seconds", 1)(0.0),
        set_at("mlp", "seconds", 1)(-0.003),
        set_at("mlp", "seconds", 1)(1e300),
    ],
)
def test_malformed_costs_are_measured_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changed: Callable[[Any], Any]
) -> None:
    """With one warning, and once."""
    measure = Measure()
    stored_costs(runner(), "float32", tmp_path, measure)
    change(the_file(tmp_path), changed)
    assert stored_costs(runner(), "float32", tmp_path, measure) is COSTS
    [warning] = caplog.records
    assert warning.levelno == logging.WARNING
    assert str(the_file(tmp_path)) in warning.getMessage()
    assert stored_costs(runner(), "float32", tmp_path, measure) == KEPT
    assert measure.times == 2


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_measured_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: str
) -> None:
    measure = Measure()
    stored_costs(runner(), "float32", tmp_path, measure)
    file = the_file(tmp_path)
    file.write_text(file.read_text().replace("0.0031", number))
    assert stored_costs(runner(), "float32", tmp_path, measure) is COSTS
    assert len(caplog.records) == 1
    assert math.isclose(stored_costs(runner(), "float32", tmp_path, measure).mlp.seconds[1], 0.0031)


def test_a_torn_file_is_measured_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    measure = Measure()
    stored_costs(runner(), "float32", tmp_path, measure)
    the_file(tmp_path).write_text(the_file(tmp_path).read_text()[:40])
    assert stored_costs(runner(), "float32", tmp_path, measure) is COSTS
    assert len(caplog.records) == 1
    assert stored_costs(runner(), "float32", tmp_path, measure) == KEPT


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    measure, occupied = Measure(), tmp_path / "file"
    occupied.write_text("")
    assert stored_costs(runner(), "float32", occupied, measure) is COSTS
    assert stored_costs(runner(), "float32", occupied, measure) is COSTS
    assert measure.times == 2
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize(("interruptions", "times"), [(0, 1), (90, 1), (150, 2)])
def test_what_was_measured_beside_others_is_not_kept(
    tmp_path: Path, interruptions: int, times: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would mislead every later process; this one learns better from its own passes."""
    seen = itertools.count(step=interruptions)
    monkeypatch.setattr(cost_store, "interruptions", lambda: next(seen))
    measure = Measure()
    for _ in range(2):
        assert stored_costs(runner(), "float32", tmp_path, measure).attention == COSTS.attention
    assert measure.times == times
    assert ("measured again at the next start" in caplog.text) == (times == 2)


def test_interruptions_are_counted() -> None:
    """Two threads that take turns on one core are each other's."""
    before = INTERRUPTIONS()
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(ours)})
    try:
        work = "import time; end = time.monotonic() + 0.3\nwhile time.monotonic() < end: pass"
        other = subprocess.Popen([sys.executable, "-c", work])
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            pass
        other.wait(10)
    finally:
        os.sched_setaffinity(0, ours)
    assert INTERRUPTIONS() > before
