"""Every way to name a model ends in a whole directory or in one clear sentence."""

import functools
import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from swift_backend.config import default_cache_dir
from swift_backend.errors import ModelLoadError
from swift_backend.model import checkpoint
from swift_backend.model.checkpoint import resolve_model


def test_a_directory_is_returned_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    assert resolve_model(str(tmp_path), "float32") == tmp_path


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no config.json."),
        ({"x.gguf": "GGUF"}, "has no config.json; it holds a .gguf file: name that file instead."),
        ({"config.json": "{}"}, "has no *.safetensors and no pytorch_model*.bin."),
        ({"config.json": "{", "model.safetensors": ""}, "config.json cannot be read: Expecting property name"),
        ({"config.json": "[]", "model.safetensors": ""}, "config.json must hold a JSON object."),
    ],
)
def test_a_directory_that_is_no_model_is_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelLoadError) as raised:
        resolve_model(str(tmp_path), "float32")
    assert message in str(raised.value)


@pytest.mark.parametrize("source", ["/no/such/model", "./no/such", "no-such.gguf", "org/no-such.gguf", "one-word"])
def test_a_missing_path_is_refused_without_asking_the_hub(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    with pytest.raises(ModelLoadError, match=r"does not exist: give a directory, a \.gguf file or a hub id"):
        resolve_model(source, "float32")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt").touch()
    with pytest.raises(ModelLoadError, match=r"is neither a directory nor a \.gguf file"):
        resolve_model(str(tmp_path / "model.pt"), "float32")


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="must be one of float32, bfloat16, float16, got 'int8'"):
        resolve_model(None, "int8")


def test_a_missing_default_model_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "DEFAULT_MODEL_PACKAGE", "no_such_package")
    with pytest.raises(ModelLoadError, match="install the package no-such-package, or name a model"):
        resolve_model(None, "float32")


def test_a_hub_id_is_downloaded_without_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.utils._paths import filter_repo_objects

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    seen: dict[str, Any] = {}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **kw: seen.update(kw, name=name) or tmp_path)
    assert resolve_model("org/name", "float32", progress=lambda _: None) == tmp_path
    assert seen.pop("name") == "org/name"
    offered = ["a.safetensors", "pytorch_model.bin", "original/x.safetensors", "consolidated.safetensors", "code.py"]
    offered += ["config.json", "tokenizer.model", "chat_template.jinja", "merges.txt", "README.md"]
    taken = list(filter_repo_objects(offered, **seen))
    assert taken == ["a.safetensors", "config.json", "tokenizer.model", "chat_template.jinja", "merges.txt"]


@pytest.mark.parametrize("error", [OSError("no route\nmore"), ValueError("no route"), RuntimeError("no route")])
def test_a_failing_hub_is_one_sentence_with_a_way_out(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ModelLoadError) as raised:
        resolve_model("org/name", "float32", progress=lambda _: None)
    assert str(raised.value) == (
        "'org/name' is no local path and could not be had from the Hugging Face hub (no route): "
        "check the name, the network and HF_TOKEN, or download it elsewhere and give the directory."
    )


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SWIFT_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/swift-triton")),
        ({"SWIFT_CACHE_DIR": ""}, Path.home() / ".cache/swift-triton"),
    ],
)
def test_the_cache_directory(environ: dict[str, str], expected: Path) -> None:
    assert default_cache_dir(environ) == expected


@pytest.mark.model
def test_the_default_model_is_the_gguf_of_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    source = checkpoint._default_gguf()
    directory = resolve_model(None, "float32")
    assert source.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    # transformers reads the file twice and makes the map of names once for each of its 396 modules.
    for name in ("GGUFReader", "get_tensor_name_map"):
        monkeypatch.setattr(gguf, name, functools.cache(getattr(gguf, name)))
    ids = torch.tensor([[1, 4093, 198, 26843, 2, 198]])
    direct = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    assert ours.lm_head.weight.data_ptr() == ours.model.embed_tokens.weight.data_ptr()
    with torch.inference_mode():
        assert torch.equal(ours(ids).logits, direct(ids).logits)
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == 2
