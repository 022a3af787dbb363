"""From a file of prompts to a file of layer sets that a server starts from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from rich.progress import Progress

from swift_backend import InvalidRequest, SamplingParams, SwiftLLM
from swift_backend.layer_knowledge import read_layer_sets
from swift_backend.optimize import find_sets, first_rows, main
from swift_backend.runner import Runner
from swift_backend.speculation.corpus import Corpus, Text
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.offline import OfflineSearch, Scored
from swift_backend.speculation.pool import SHIPPED, Pool
from swift_backend.speculation.rehearsal import Rehearsal
from swift_backend.speculation.similarity import Profile
from swift_backend.text.dataset import Row

ROWS: list[dict[str, Any]] = [
    {"question_id": 1, "category": "code", "turns": ["w3 w4 w5 w30 w31", "and then?"]},
    {"question_id": 2, "category": "prose", "turns": ["w6 w7 w8"]},
    {"question_id": 3, "category": "code", "turns": ["w9 w40"]},
    {"question_id": 4, "category": "code", "turns": ["w41 w42"]},
]


def dataset(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


Command = Callable[..., int]


@pytest.fixture
def command(tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """command(rows, options …) runs it on the tiny model; what it finds is in tmp_path / "sets.json"."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(rows: list[Any], *options: str) -> int:
        file = dataset(tmp_path / "prompts.jsonl", *rows)
        fixed = ["--model", str(tiny_model("llama")), "--dtype", "float32", "--out", str(tmp_path / "sets.json")]
        small = ["--dataset", str(file), "--tokens", "12", "--positions", "6", "--kv-cache-tokens", "512"]
        return main([*fixed, *small, *options])

    return run


def test_rows_are_the_first_of_each_category(tmp_path: Path) -> None:
    """In the order of the categories; over all files."""
    one, other = dataset(tmp_path / "a", *ROWS[:2]), dataset(tmp_path / "b", *ROWS[2:])
    assert first_rows([one, other], per_category=2) == [
        Row("code", "w3 w4 w5 w30 w31"),
        Row("code", "w9 w40"),
        Row("prose", "w6 w7 w8"),
    ]


def test_lines_end_where_json_lines_do(tmp_path: Path) -> None:
    """Not at U+2028, which JSON allows within text; empty lines are none."""
    file = dataset(tmp_path / "a", {"category": "code", "turns": ["one\u2028line\u0085"]})
    file.write_bytes(b"\n" + file.read_bytes().replace(b"\n", b"\r\n") + b"\n")
    assert first_rows([file], 1) == [Row("code", "one\u2028line\u0085")]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "3",
        "null",
        '{"category": "code"}',
        '{"turns": ["w3"]}',
        '{"category": "code", "turns": []}',
        pytest.param("[" * 10**5, id="deep"),
    ],
)
def test_a_row_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps(ROWS[0]) + "\n" + line)
    with pytest.raises(InvalidRequest, match=r'prompts.jsonl, line 2: must be \{"category": …, "turns": \[prompt, …\]'):
        first_rows([file], 1)


@pytest.mark.parametrize("row", [{"category": 3, "turns": ["w3"]}, {"category": "code", "turns": ["\\ud800"]}])
def test_a_prompt_that_is_no_text_is_named(tmp_path: Path, row: Any) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps(row).replace("\\\\", "\\"))
    with pytest.raises(InvalidRequest, match="prompts.jsonl, line 1: category and turns must be text"):
        first_rows([file], 1)


def test_what_it_writes_a_server_reads(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_model: Callable[[str], Path]
) -> None:
    assert command(ROWS) == 0
    pool = read_layer_sets(tmp_path / "sets.json", 7)
    assert 1 <= len(pool) <= 4
    ends = 0b11 | 0b11 << 12
    assert all(arm.origin == SHIPPED and arm.skip_mask and not arm.skip_mask & ends for arm in pool)
    assert len({arm.skip_mask for arm in pool}) == len(pool)
    content = json.loads((tmp_path / "sets.json").read_text())["content"]
    assert Pool.from_content(7, content).to_content() == content
    assert_records_are_the_evidence(content)
    out = capsys.readouterr().out
    assert [arm["skip_mask"] in out for arm in content["arms"]] == [True] * len(pool)
    assert all(word in out for word in ("code", "prose", "all", "layer sets")) and "left out" not in out

    llm = SwiftLLM(tiny_model("llama"), "float32", kv_cache_tokens=128, layer_sets=str(tmp_path / "sets.json"))
    drafting, plain = llm.generate(
        ["w9 w40"] * 2, [SamplingParams(max_tokens=20, ignore_eos=True, speculation=mode) for mode in ("static", "off")]
    )
    assert drafting.token_ids == plain.token_ids
    assert drafting.stats.layer_set in [arm["skip_mask"] for arm in content["arms"]]


def assert_records_are_the_evidence(content: Any) -> None:
    """Each set was tried on each prompt, and what its records say adds up to what it says itself."""
    for arm in content["arms"]:
        records = [record for record in content["records"] if record["skip_mask"] == arm["skip_mask"]]
        assert len(records) == 4 and all(len(record["profile"]) == 21 for record in records)
        for what in ("drafted", "accepted"):
            assert sum(arm["first"][what]) == sum(record[what] for record in records)
            assert sum(arm["later"][what]) == 0
        assert sum(arm["first"]["drafted"]) > 0


# Tokens per second over plain decoding on code, and on prose.
SPEEDS = {0x4: (1.1, 1.1), 0x8: (1.3, 1.3), 0x20: (1.6, 0.9), 0x40: (0.8, 1.5), 0x80: (1.1, 1.0)}


class Found:
    """A search whose trellises end with these sets, and that is led to another one by each exchange."""

    positions, num_sublayers = 6, 14
    done = False

    def __init__(self, exchanged: int) -> None:
        self._exchanged = exchanged
        self.starts: list[Scored] = []
        self.trellises: list[list[str]] = []

    @property
    def masks(self) -> list[int]:
        return list(SPEEDS)

    def trellis(self, texts: list[Text], most_skipped: float) -> Found:
        self.trellises.append([text.category for text in texts])
        self.done = False
        return self

    def step(self) -> None:
        self.done = True

    def score(self, skips: list[int], positions: int, texts: list[Text]) -> list[Scored]:
        return [self.scored(skip, {text.category for text in texts}) for skip in skips]

    def exchange(self, start: Scored, texts: list[Text]) -> Scored:
        self.starts.append(start)
        return self.scored(self._exchanged, {text.category for text in texts})

    def scored(self, mask: int, kinds: set[str]) -> Scored:
        speeds = {**SPEEDS, 0x800: (1.4, 1.3)}[mask]
        seconds = sum(100 / speed for kind, speed in zip(("code", "prose"), speeds, strict=True) if kind in kinds)
        return Scored(LayerSet(7, mask), Rehearsal(tokens=100 * len(kinds), rounds=50, time=seconds), 3, 0.5, 0.9)


def texts(*categories: str) -> Corpus:
    profile = Profile(torch.zeros(21))
    return Corpus(cast(Runner, None), [Text(category, [5, 6], 0, 0, profile) for category in categories])


@pytest.mark.parametrize(
    ("exchanged", "masks"),
    # first what the exchange made of the best over all, which may be that itself; then who serves a kind better
    [(0x800, [0x800, 0x40, 0x20]), (0x8, [0x8, 0x20, 0x40])],
)
def test_each_kind_of_text_has_its_set(exchanged: int, masks: list[int]) -> None:
    search = Found(exchanged)
    corpus = texts("code", "prose", "code")
    found = find_sets(cast(OfflineSearch, search), corpus, 0.5, 2, Progress(disable=True))
    assert found == masks
    assert [start.layer_set.skip_mask for start in search.starts] == [0x8, exchanged]
    assert search.trellises == [["code", "prose", "code"], ["code", "code"], ["prose"]]


def test_texts_of_one_kind_have_one_trellis() -> None:
    search = Found(0x20)
    found = find_sets(cast(OfflineSearch, search), texts("code", "code"), 0.5, 0, Progress(disable=True))
    assert found == [0x20]
    assert search.trellises == [["code", "code"]]


def test_the_same_prompts_give_the_same_sets(command: Command, tmp_path: Path) -> None:
    """The costs are read where they were measured before, so nothing is left to chance."""
    assert command(ROWS) == 0
    first = (tmp_path / "sets.json").read_bytes()
    assert command(ROWS) == 0
    assert (tmp_path / "sets.json").read_bytes() == first


def test_prompts_without_room_are_left_out_and_counted(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """256 tokens of context, of which the answer takes 12; the cache holds 272."""
    long = [{"category": "long", "turns": [turn]} for turn in ("w5 " * 400, "w5 " * 245, "")]
    fits = {"category": "fits", "turns": ["w5 " * 244]}
    assert command([*long, fits, *ROWS], "--kv-cache-tokens", "272") == 0
    out = capsys.readouterr().out
    assert "3 of 8 prompts left out: empty, or longer than 244 tokens" in out
    assert "3 of 8 prompts left out: the cache is full, see --kv-cache-tokens" in out
    records = json.loads((tmp_path / "sets.json").read_text())["content"]["records"]
    assert len({tuple(record["profile"]) for record in records}) == 2


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error


def test_no_prompt_is_left(command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command([{"category": "long", "turns": ["w5 " * 300]}]) == 1
    assert "dataset holds no prompt that can be used" in one_line(capsys)
    assert not (tmp_path / "sets.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "/none.gguf"], "The model '/none.gguf'"),
        (["--dataset", "/none.jsonl"], "No such file or directory: '/none.jsonl'"),
        (["--out", "/dev/null/sets.json"], "'/dev/null'"),
        (["--out", "/tmp"], "out must be a file, and /tmp is a folder"),
        (["--most-skipped", "0.05"], "most_skipped leaves no sublayer of this model to be skipped"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    command: Command, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert command(ROWS, *options) == 1
    assert message in one_line(capsys)


def test_a_file_that_cannot_be_written_is_a_failure(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("swift_backend.stored_json._replace", full)
    assert command(ROWS) == 1
    assert "sets.json cannot be written: disk full" in caplog.text


@pytest.mark.parametrize(
    "options", [["--tokens", "0"], ["--per-category", "0"], ["--most-skipped", "0"], ["--most-draft-tokens", "none"]]
)
def test_options_are_checked_before_anything_is_loaded(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--dataset", "/none.jsonl", "--out", "sets.json", *options])
    assert f"argument {options[0]}" in capsys.readouterr().err
