"""Memory is that of the process that ran, and of the model and cache in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from loadtest.memory import main, measured, peak_rss, table
from swift_backend import SwiftLLM
from swift_backend.speculation.pool import SHIPPED, Pool, save_pool

MIB = 2**20


def test_the_peak_is_this_process() -> None:
    before = peak_rss()
    held = torch.ones(64 * MIB // 4)
    assert peak_rss() - before > 0 and peak_rss() > held.nbytes


def test_each_method_has_a_process_of_its_own(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """The same weights and cache; nothing else that lasts."""
    model = tiny_model("llama")
    off, auto = measured(str(model), "float32", ["off", "lookahead"], tokens=60, batch=1)  # alone, no clock decides
    llm = SwiftLLM(model, "float32", kv_cache_tokens=8192)
    for one in (off, auto):
        assert one["weights"] == llm.engine.runner.decoder.num_bytes
        assert one["kv_cache"] == llm.engine.runner.cache.num_bytes
        assert one["peak_rss"] > one["weights"] + one["kv_cache"] and one["cuda_peak"] is None
        assert 0 <= one["scratch"] < one["peak_rss"]
    assert off["draft_tokens"] == 0 < auto["draft_tokens"]
    assert table([off, auto]).row_count == 2


def test_static_has_its_layer_sets(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    pool, path = Pool(7), tmp_path / "sets.json"
    pool.add(0b0011_1100_0000, SHIPPED)
    assert save_pool(path, pool)
    [static] = measured(str(tiny_model("mistral")), "float32", ["static"], tokens=24, batch=1, layer_sets=path)
    assert static["method"] == "static" and static["weights"] > 0


def test_the_command(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "reports" / "memory.json"
    options = ["--model", str(tiny_model("llama")), "--dtype", "float32", "--max-tokens", "4", "--json", str(out)]
    assert main([*options, "--methods", "off"]) == 0
    assert [one["method"] for one in json.loads(out.read_text())] == ["off"]
