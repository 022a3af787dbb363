"""The three config.pbtxt say what the contract says, and the folders hold no code."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import text_format  # type: ignore[import-untyped]
from tritonclient.grpc import model_config_pb2

from swift_backend.config import EngineConfig
from swift_backend.sequence import Output
from swift_backend.serving.answer import output_arrays

REPOSITORY = Path(__file__).parents[2] / "model_repository"
PROMPT = {"text_input": ("STRING", [1]), "messages": ("STRING", [1])}
OPTIONS = {
    "stream": ("BOOL", [1]),
    "sampling_parameters": ("STRING", [1]),
    "exclude_input_in_output": ("BOOL", [1]),
    "return_finish_reason": ("BOOL", [1]),
    "return_num_input_tokens": ("BOOL", [1]),
    "return_num_output_tokens": ("BOOL", [1]),
    "return_cumulative_logprob": ("BOOL", [1]),
    "return_logprobs": ("BOOL", [1]),
}
ANSWER = {
    "text_output": ("STRING", [1]),
    "output_ids": ("INT32", [-1]),
    "finish_reason": ("STRING", [1]),
    "num_input_tokens": ("UINT32", [1]),
    "num_output_tokens": ("UINT32", [1]),
    "cumulative_logprob": ("FP32", [1]),
    "logprobs": ("STRING", [1]),
    "total_draft_tokens": ("INT32", [1]),
    "total_accepted_draft_tokens": ("INT32", [1]),
    "acceptance_rate": ("FP32", [1]),
}
IDS = {"input_ids": ("INT32", [-1])}
TENSORS = {
    "swift": (PROMPT | OPTIONS, ANSWER),
    "swift_tokenizer": (PROMPT, IDS),
    "swift_decoder": (IDS | {"stop": ("BOOL", [1])} | OPTIONS, ANSWER | {"cancelled": ("BOOL", [1])}),
}


def config_text(name: str) -> str:
    return (REPOSITORY / name / "config.pbtxt").read_text(encoding="utf-8")


def config_of(name: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse(config_text(name), model_config_pb2.ModelConfig())


def types(tensors: list[model_config_pb2.ModelInput]) -> dict[str, tuple[str, list[int]]]:
    names = {number: name.removeprefix("TYPE_") for name, number in model_config_pb2.DataType.items()}
    return {tensor.name: (names[tensor.data_type], list(tensor.dims)) for tensor in tensors}


@pytest.mark.parametrize("name", TENSORS)
def test_the_tensors_are_the_contracts(name: str) -> None:
    config = config_of(name)
    assert (config.name, config.max_batch_size) == (name, 0)
    assert (types(config.input), types(config.output)) == TENSORS[name]
    assert [tensor.name for tensor in config.input if not tensor.optional] == []


def test_the_converters_build_what_the_configs_declare() -> None:
    assert set(output_arrays(Output("1"))) == set(ANSWER)


def test_the_ensemble_passes_everything_on_under_its_own_name() -> None:
    tokenizer, decoder = config_of("swift").ensemble_scheduling.step
    assert (tokenizer.model_name, decoder.model_name) == ("swift_tokenizer", "swift_decoder")
    assert dict(tokenizer.input_map) == {name: name for name in PROMPT}
    assert dict(tokenizer.output_map) == {name: name for name in IDS}
    assert dict(decoder.input_map) == {name: name for name in IDS | OPTIONS}
    assert dict(decoder.output_map) == {name: name for name in ANSWER}


def test_one_decoder_answers_often_and_several_tokenizers_once() -> None:
    decoder, tokenizer = config_of("swift_decoder"), config_of("swift_tokenizer")
    kinds = model_config_pb2.ModelInstanceGroup.Kind
    assert decoder.model_transaction_policy.decoupled and not tokenizer.model_transaction_policy.decoupled
    assert [(group.kind, group.count) for group in decoder.instance_group] == [(kinds.Value("KIND_MODEL"), 1)]
    assert [(group.kind, group.count) for group in tokenizer.instance_group] == [(kinds.Value("KIND_CPU"), 2)]


def test_the_decoders_config_names_every_engine_option() -> None:
    """A new option has to be documented where operators look for it, with its default."""
    pattern = r'^# parameters \{ key: "(\w+)" value: \{ string_value: "([^"]+)" \} \}$'
    entries = dict(re.findall(pattern, config_text("swift_decoder"), re.MULTILINE))
    assert set(entries) == set(EngineConfig.__dataclass_fields__)
    config, defaults = EngineConfig.from_sources(entries, {}), EngineConfig()
    changed = {name for name in entries if getattr(config, name) != getattr(defaults, name)}
    unset = {"model", "kv_cache_tokens", "kv_cache_share", "timeout_ms", "threads", "skip_ratio", "layer_sets"}
    assert changed == unset | {"draft_vocabulary"}  # their default is "not set"


@pytest.mark.parametrize("part", ["tokenizer", "decoder"])
def test_looking_at_a_model_imports_nothing(part: str) -> None:
    """Triton starts a process for each model only to ask what its class has, and another to serve."""
    folder = REPOSITORY / f"swift_{part}" / "1"
    code = "import sys, model; assert not {'torch', 'transformers', 'numpy', 'swift_backend'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=60)


@pytest.mark.parametrize("part", ["tokenizer", "decoder"])
def test_the_folders_pass_everything_on(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, tuple[Any, ...]]] = []

    class Model:
        def __getattr__(self, name: str) -> Any:
            return lambda *given: called.append((name, given)) or name

    module = SimpleNamespace(TritonPythonModel=Model)
    monkeypatch.setitem(sys.modules, f"swift_backend.serving.{part}_model", module)
    entry = runpy.run_path(str(REPOSITORY / f"swift_{part}" / "1" / "model.py"))["TritonPythonModel"]()
    entry.initialize({"model_name": "x"})
    assert (entry.execute([1]), entry.finalize()) == ("execute", None)
    assert called == [("initialize", ({"model_name": "x"},)), ("execute", ([1],)), ("finalize", ())]
    if part == "decoder":
        assert entry.is_ready() == "is_ready"
