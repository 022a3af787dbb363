"""Every way to name a model ends in a whole directory or in one clear sentence."""

import functools
import json
import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from swift_backend.config import default_cache_dir
from swift_backend.errors import ModelLoadError
from swift_backend.model import checkpoint, conversion_cache
from swift_backend.model.checkpoint import resolve_model
from swift_backend.model.file_hash import HashMemo, sha256_of
from swift_backend.model.gguf_convert import end_token_ids
from swift_backend.model.gguf_header import read_gguf_header
from swift_backend.model.manifest import write_manifest

HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, LAYERS = 16, 32, 4, 2, 2
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def byte_level_vocabulary() -> list[str]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [*CONTROL, *bytes_to_unicode().values(), "ĠĠ"]


def write_gguf(path: Path, *, arch: str = "llama", tied: bool = True, extra: tuple[str, ...] = ()) -> Path:
    """A random two-layer model with a byte-level vocabulary, in GGUF."""
    tokens = byte_level_vocabulary()
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, shape in tensor_shapes(len(tokens), tied, extra).items():
        values = np.random.default_rng(sum(name.encode())).standard_normal(shape, dtype=np.float32)
        writer.add_tensor(name, values * 0.1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensor_shapes(vocab: int, tied: bool, extra: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        shapes["output.weight"] = (vocab, HIDDEN)
    for layer in range(LAYERS):
        parts = {
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (FEED_FORWARD, HIDDEN),
            "ffn_up": (FEED_FORWARD, HIDDEN),
            "ffn_down": (HIDDEN, FEED_FORWARD),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return shapes | {name: (2,) for name in extra}


def drop_tensor(path: Path, old: bytes, new: bytes) -> Path:
    """Renames a tensor inside the file, so that the old name is missing."""
    assert len(old) == len(new)
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    return path


def everything_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """(GGUF file, converted directory, progress lines) of one conversion."""
    folder = tmp_path_factory.mktemp("gguf")
    source = write_gguf(folder / "tiny model.gguf")
    lines: list[str] = []
    return source, resolve_model(str(source), "float32", cache_dir=folder / "cache", progress=lines.append), lines


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


def test_a_conversion_is_said_once_and_named_after_content_and_dtype(converted: tuple[Path, Path, list[str]]) -> None:
    source, directory, lines = converted
    assert lines == ["Converting tiny model.gguf to float32 once; this can take a minute."]
    assert directory.name == f"tiny_model-{sha256_of(source)[:16]}-float32"
    assert everything_in(directory.parent) - {f"{directory.name}/{name}" for name in os.listdir(directory)} == {
        directory.name,
        "hashes.json",
    }


def test_the_configs_are_those_of_a_plain_model(converted: tuple[Path, Path, list[str]]) -> None:
    config = json.loads((converted[1] / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["model_type"], config["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert (config["dtype"], config["tie_word_embeddings"], config["eos_token_id"]) == ("float32", True, [0, 2])
    generation = json.loads((converted[1] / "generation_config.json").read_text())
    assert generation == {"bos_token_id": None, "eos_token_id": [0, 2], "pad_token_id": None}


def test_the_logits_are_those_of_the_gguf(converted: tuple[Path, Path, list[str]]) -> None:
    from transformers import AutoModelForCausalLM

    source, directory, _ = converted
    ids = torch.tensor([[5, 9, 200, 17]])
    direct = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        assert torch.equal(ours(ids).logits, direct(ids).logits)


def test_a_head_of_its_own_is_kept(tmp_path: Path) -> None:
    from safetensors import safe_open

    source = write_gguf(tmp_path / "untied.gguf", tied=False)
    directory = resolve_model(str(source), "bfloat16", cache_dir=tmp_path, progress=lambda _: None)
    with safe_open(directory / "model.safetensors", "pt") as file:
        head, embedding = file.get_tensor("lm_head.weight"), file.get_tensor("model.embed_tokens.weight")
    assert head.dtype == torch.bfloat16
    assert not torch.equal(head, embedding)


def test_the_tokenizer_keeps_digits_apart_from_spaces(converted: tuple[Path, Path, list[str]]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted[1])
    # GPT-2's split would give ["Ġ", "Ġ1"-like pieces]; here both spaces merge and the digits stand alone.
    assert tokenizer.convert_ids_to_tokens(tokenizer("  12")["input_ids"]) == ["ĠĠ", "1", "2"]
    assert tokenizer.chat_template == TEMPLATE


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"tokenizer.ggml.eos_token_id": 2}, 2),
        ({}, None),
        (
            {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.eot_token_id": 2, "tokenizer.ggml.eom_token_id": 1},
            [1, 2],
        ),
        (
            {
                "tokenizer.ggml.eos_token_id": 0,
                "tokenizer.ggml.tokens": ["a", "<|im_end|>", "<|end|>", "<|eot_id|>"],
                "tokenizer.ggml.token_type": [3, 3, 1, 3],
                "tokenizer.chat_template": "<|im_end|> <|end|>",
            },
            [0, 1],
        ),
    ],
)
def test_end_tokens(metadata: dict[str, object], expected: object) -> None:
    assert end_token_ids(metadata) == expected


def test_the_second_call_converts_nothing_and_does_without_transformers(
    converted: tuple[Path, Path, list[str]],
) -> None:
    source, directory, _ = converted
    program = (
        "import sys; from pathlib import Path\n"
        "from swift_backend.model.conversion_cache import converted_directory as converted\n"
        f"print(converted(Path({str(source)!r}), 'float32', Path({str(directory.parent.parent)!r}), print))\n"
        "assert 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{directory}\n"


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("model.safetensors", lambda old: old[:-1], r"model.safetensors has \d+ bytes instead of \d+"),
        ("model.safetensors", lambda old: old[:-1] + bytes([old[-1] ^ 1]), "model.safetensors has other content"),
        ("tokenizer.json", lambda old: None, "tokenizer.json is missing"),
        ("manifest.json", lambda old: b"{", "JSONDecodeError while reading it"),
        ("manifest.json", lambda old: old.replace(b'"format": 1', b'"format": 0'), "it was written by another version"),
    ],
)
def test_a_damaged_entry_is_rebuilt(  # type: ignore[no-untyped-def]
    converted: tuple[Path, Path, list[str]], monkeypatch: pytest.MonkeyPatch, name: str, damage, reason: str
) -> None:
    source, directory, _ = converted
    whole = {file.name: file.read_bytes() for file in directory.iterdir()}

    def write_again(_gguf: Path, _header: object, target: Path, _dtype: str) -> None:
        for file_name in set(whole) - {"manifest.json"}:
            (target / file_name).write_bytes(whole[file_name])

    monkeypatch.setattr(conversion_cache, "convert_gguf", write_again)
    (directory / name).unlink()
    if (content := damage(whole[name])) is not None:
        (directory / name).write_bytes(content)
    lines: list[str] = []
    again = resolve_model(str(source), "float32", cache_dir=directory.parent.parent, progress=lines.append)
    assert again == directory
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == whole
    assert len(lines) == 1
    assert re.search(rf"again, the cached copy is damaged \({reason}", lines[0])


def test_what_a_killed_conversion_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(conversion_cache, "convert_gguf", lambda *args: (args[2] / "config.json").write_text("{}"))
    leftover = tmp_path / "cache" / "models" / f".tiny-{sha256_of(source)[:16]}-float16.abc"
    leftover.mkdir(parents=True)
    resolve_model(str(source), "float16", cache_dir=tmp_path / "cache", progress=lambda _: None)
    assert not leftover.exists()


def _resolve_in_process(source: str, cache: str, dtype: str, start, results) -> None:  # type: ignore[no-untyped-def]
    start.wait()
    lines: list[str] = []
    results.put((str(resolve_model(source, dtype, cache_dir=Path(cache), progress=lines.append)), lines))


@pytest.mark.slow
def test_two_processes_at_once_convert_once(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "tiny.gguf")
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    arguments = (str(source), str(tmp_path / "cache"), "float32", start, results)
    workers = [context.Process(target=_resolve_in_process, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    outcomes = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(timeout=30)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len({directory for directory, _ in outcomes}) == 1
    converting = [line for _, lines in outcomes for line in lines if line.startswith("Converting")]
    assert len(converting) == 1


def test_a_winner_that_locks_could_not_stop_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(conversion_cache, "_acquire", lambda *_: False)

    def convert(_gguf: Path, _header: object, target: Path, _dtype: str) -> None:
        (target / "config.json").write_text("{}")
        if not target.name.startswith(".winner"):
            job = conversion_cache._Conversion(source.resolve(), sha256_of(source), "float32", target.parent)
            winner = target.parent / ".winner"
            winner.mkdir()
            (winner / "config.json").write_text('{"winner": true}')
            write_manifest(winner, job.sha256)
            winner.rename(job.entry)

    monkeypatch.setattr(conversion_cache, "convert_gguf", convert)
    directory = resolve_model(str(source), "float32", cache_dir=tmp_path / "cache", progress=lambda _: None)
    assert (directory / "config.json").read_text() == '{"winner": true}'
    assert set(os.listdir(directory.parent)) == {directory.name, "hashes.json"}


def test_an_unusable_cache_is_one_sentence(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(
        ModelLoadError, match=r"tiny.gguf cannot be converted into .*SWIFT_CACHE_DIR names another place"
    ):
        resolve_model(str(source), "float32", cache_dir=tmp_path / "cache", progress=lambda _: None)


def test_the_memo_notices_a_changed_file_and_survives_damage(tmp_path: Path) -> None:
    file, memo = tmp_path / "file", HashMemo(tmp_path / "hashes.json")
    file.write_bytes(b"old")
    memo.remember(file, "from the memo")
    assert memo.digest(file) == "from the memo"
    file.write_bytes(b"other")
    assert memo.digest(file) == sha256_of(file)
    (tmp_path / "hashes.json").write_text("[")
    assert memo.digest(file) == sha256_of(file)
    HashMemo(tmp_path / "missing" / "hashes.json").remember(file, "nowhere to write")


def assert_refused(source: Path, cache: Path, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as raised:
        resolve_model(str(source), "float32", cache_dir=cache, progress=lambda _: None)
    assert "\n" not in str(raised.value)
    assert not cache.exists() or everything_in(cache) == {"models"}


@pytest.mark.parametrize("content", [b"", b"GGUF", b"just a text file, long enough for a header"])
def test_a_text_file_is_no_gguf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "text.gguf").write_bytes(content)
    assert_refused(tmp_path / "text.gguf", tmp_path / "cache", "text.gguf is not a GGUF file: it")


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 0.6, 0.99])
def test_a_cut_off_file_is_refused(tmp_path: Path, share: float) -> None:
    source = write_gguf(tmp_path / "cut.gguf")
    content = source.read_bytes()
    source.write_bytes(content[: int(len(content) * share)])
    assert_refused(source, tmp_path / "cache", "cut.gguf is (damaged or )?cut off")


def test_every_damaged_header_is_refused_or_read(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "damaged.gguf")
    content = source.read_bytes()
    for position in range(4, 2000, 7):
        source.write_bytes(content[:position] + b"\xff" * 8 + content[position + 8 :])
        try:
            assert read_gguf_header(source).tensor_names
        except ModelLoadError as error:
            assert "damaged.gguf" in str(error)


def test_an_unsupported_architecture_is_refused(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "odd.gguf", arch="rwkv6")
    assert_refused(source, tmp_path / "cache", r"odd.gguf \(GGUF architecture 'rwkv6'\) cannot be converted")


def test_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    source = drop_tensor(write_gguf(tmp_path / "gap.gguf"), b"blk.1.ffn_up.weight", b"blk.9.ffn_up.weight")
    assert_refused(
        source, tmp_path / "cache", r"the file has no model.layers.1.mlp.up_proj.weight \(1 missing in all\)"
    )


def test_rope_scaling_is_refused_rather_than_lost(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "long.gguf", extra=("rope_freqs.weight",))
    assert_refused(source, tmp_path / "cache", "scales its rotary embedding .* use the model's Hugging Face directory")


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
