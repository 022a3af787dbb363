"""What is no GGUF of ours is refused in one sentence, and leaves nothing behind."""

from pathlib import Path

import pytest

from swift_backend.errors import ModelLoadError
from swift_backend.model.checkpoint import resolve_model
from swift_backend.model.gguf_header import read_gguf_header
from tests.unit.model.tiny_gguf import drop_tensor, everything_in, write_gguf


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
