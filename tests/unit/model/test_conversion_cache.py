"""A conversion is done once, whoever dies or races, and a damaged one is done again."""

import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from swift_backend.errors import ModelLoadError
from swift_backend.model import conversion_cache
from swift_backend.model.checkpoint import resolve_model
from swift_backend.model.file_hash import HashMemo, sha256_of
from swift_backend.model.manifest import write_manifest
from tests.unit.model.tiny_gguf import write_gguf


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
