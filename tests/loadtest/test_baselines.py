"""Other engines get the same weights and the same prompts, and ratios are ours over theirs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import load_file

from loadtest.baselines import __main__ as command
from loadtest.baselines.engines import LlamaCpp, Ours, Run, Transformers
from loadtest.baselines.gguf_export import NotExported, _ordered, export
from swift_backend import SwiftLLM
from tests.conftest import save_tiny_model, tiny_config

PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_the_file_has_every_weight(tmp_path: Path, family: str) -> None:
    directory = save_tiny_model(tmp_path / "model", tiny_config(family, rope_parameters=PLAIN_ROPE))
    export(directory, tmp_path / "m.gguf")
    reader = GGUFReader(tmp_path / "m.gguf")
    weights = load_file(directory / "model.safetensors")
    assert len(reader.tensors) == len(weights)
    known = {one.name: one for one in reader.tensors}
    down = weights["model.layers.1.mlp.down_proj.weight"].to(torch.bfloat16)
    stored = torch.from_numpy(np.array(known["blk.1.ffn_down.weight"].data)).view(torch.bfloat16)
    assert torch.equal(stored, down)
    norm = np.array(known["output_norm.weight"].data)
    assert norm.dtype == np.float32 and np.array_equal(norm, weights["model.norm.weight"].float().numpy())


def test_queries_turn_as_they_did() -> None:
    """Rotating neighbours of the reordered values is rotating halves of the values as they were."""
    torch.manual_seed(0)
    config = {"num_attention_heads": 2, "num_key_value_heads": 1}
    weight, x, angles = torch.randn(16, 6), torch.randn(6), torch.randn(4)

    def halves(values: torch.Tensor) -> torch.Tensor:
        a, b = values.view(2, 2, 4).unbind(1)
        return torch.stack((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=1)

    def neighbours(values: torch.Tensor) -> torch.Tensor:
        a, b = values.view(2, 4, 2).unbind(2)
        return torch.stack((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=1)

    ordered = _ordered("model.layers.0.self_attn.q_proj.weight", weight, config)
    assert torch.allclose(halves(weight @ x), neighbours(ordered @ x), atol=1e-6)
    other = torch.randn(16, 6)
    assert _ordered("model.layers.0.self_attn.v_proj.weight", other, config) is other


def test_other_families_are_refused_by_name(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(NotExported, match="qwen3: only llama, qwen2"):
        export(tiny_model("qwen3"), tmp_path / "m.gguf")
    with pytest.raises(NotExported, match="rope scaling llama3"):
        export(tiny_model("llama"), tmp_path / "m.gguf")


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_llama_cpp_answers_as_we_do(tmp_path: Path, family: str) -> None:
    """But for near ties: it rounds activations to bfloat16, and we do not. Its kernels want rows of 32 values."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    sizes = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4, "head_dim": 32}
    config = tiny_config(family, rope_parameters=PLAIN_ROPE, **sizes)
    directory = save_tiny_model(tmp_path / "model", config)
    ours, theirs = Ours(SwiftLLM(directory, "bfloat16")), LlamaCpp(directory, threads=1, context=128)
    try:
        prompts = [[(7 * i + 3 * place) % 60 for place in range(6 + i)] for i in range(12)]
        pairs = [(ours.run(prompt, 2), theirs.run(prompt, 2)) for prompt in prompts]
    finally:
        theirs.close()
    assert sum(first.token_ids == second.token_ids for first, second in pairs) >= 10
    assert all(second.prefill > 0 < second.per_token for _, second in pairs)


def test_transformers_answers_as_we_do(tiny_model: Callable[[str], Path]) -> None:
    directory = tiny_model("llama")
    ours, theirs = Ours(SwiftLLM(directory, "float32"), "ngram"), Transformers(directory, "float32")
    assert ours.run([3, 9, 27], 9).token_ids == theirs.run([3, 9, 27], 9).token_ids
    assert (ours.name, theirs.name) == ("ours, ngram", "transformers")
    theirs.close()


class Timed:
    """An engine whose times are known."""

    def __init__(self, name: str, per_token: float) -> None:
        self.name, self.per_token = name, per_token
        self.asked: list[tuple[int, int]] = []

    def run(self, prompt: Sequence[int], tokens: int) -> Run:
        self.asked.append((len(prompt), tokens))
        return Run(10 * self.per_token, self.per_token, [len(prompt), int(self.name == "other")])

    def close(self) -> None:
        return


def test_ratios_are_ours_over_theirs(tiny_model: Callable[[str], Path]) -> None:
    """A warm-up, then every prompt and the long one as often as there are rounds."""
    llm = SwiftLLM(tiny_model("llama"), "float32")
    engines = [Timed("ours", 0.02), Timed("same", 0.02), Timed("other", 0.04)]
    report = command.measured(llm, engines, tokens=5, prompts=3, rounds=2)
    assert report["ratios"]["other"]["per_token"] == report["ratios"]["other"]["prefill"] == 0.5
    assert report["same_answers"] == {"same": 6, "other": 0} and report["answers"] == 6
    assert report["ms_per_token"]["ours"] == 20.0
    for engine in engines:
        assert engine.asked[0][1] == 4 and [tokens for _, tokens in engine.asked[1:]] == [5, 5, 5, 2] * 2
        assert engine.asked[4][0] == report["prefill_tokens"] == llm.engine.context_length - 6
    assert command.table({**report, "model": "m", "dtype": "d"}).row_count == 3


def test_the_command(tiny_model: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "reports" / "out.json"
    options = ["--model", str(tiny_model("llama")), "--dtype", "float32", "--tokens", "4", "--prompts", "1"]
    assert command.main([*options, "--rounds", "1", "--speculation", "off", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert set(report["ratios"]) == {"transformers"} and report["same_answers"] == {"transformers": 1}
    assert "llama.cpp is left out: float32" in capsys.readouterr().out
