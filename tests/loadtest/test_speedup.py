"""The benchmark's figures are what the engine did, its JSON is the contract's, and nothing that failed is left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, StrictBool

from loadtest.speedup import __main__ as command
from loadtest.speedup import measuring
from loadtest.speedup.options import methods
from loadtest.speedup.prompts import Prompt, alternating, batches, in_segments
from loadtest.speedup.record import Record
from loadtest.speedup.rows import row, rows_of, stream_of, totals_of
from loadtest.speedup.table import cell
from swift_backend import Completion, SwiftLLM
from swift_backend.errors import EngineFailure
from swift_backend.request_keys import SPECULATION_MODES
from swift_backend.request_stats import RequestStats
from tests.loadtest.browser import check_page


class Row(BaseModel):
    """../shared/CONTRACT.md, "Benchmarks"; more keys may be beside."""

    model_config = ConfigDict(extra="allow", strict=True)
    category: str
    method: str
    tokens: int
    decode_seconds: float
    tokens_per_second: float
    speedup: float
    acceptance_rate: float
    tokens_per_round: float
    draft_cost_ratio: float
    identical_to_off: StrictBool


class Report(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    model: str
    dtype: str
    device: str
    rows: list[Row]
    totals: dict[str, Row]


ROWS = (("code", "w3 w4 w5"), ("chat", "w7 w8"), ("code", "w9 w3"), ("code", "w4"), ("chat", "w5 w5"))


def write(path: Path, *rows: tuple[str, str]) -> Path:
    lines = [
        json.dumps({"question_id": i, "category": category, "turns": [text, "w5"]})
        for i, (category, text) in enumerate(rows or ROWS)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture
def arguments(model: Path, tmp_path: Path) -> list[str]:
    options = ["--dtype", "float32", "--max-tokens", "9", "--ignore-eos", "--json", str(tmp_path / "out.json")]
    return ["--model", str(model), "--dataset", str(write(tmp_path / "d.jsonl")), *options]


def run(arguments: list[str], *more: str, status: int = 0) -> dict[str, Any]:
    assert command.main([*arguments, *more]) == status
    report: dict[str, Any] = json.loads(Path(arguments[arguments.index("--json") + 1]).read_text())
    Report.model_validate(report)
    return report


@pytest.mark.parametrize("batch", [1, 2])
def test_the_report_is_the_contracts(arguments: list[str], batch: int) -> None:
    options = ["--methods", "fixed,similarity", "--confidence-threshold", "0", "--batch", str(batch)]
    report = run(arguments, *options)
    assert [(row["category"], row["method"]) for row in report["rows"]] == [
        (category, method) for category in ("code", "chat") for method in ("off", "fixed", "similarity")
    ]
    for one in report["rows"]:
        assert one["tokens"] == 8 * one["prompts"] == 16
        assert one["identical_to_off"] is True and one["differing"] == one["errors"] == 0
        assert (one["draft_cost_ratio"] > 0) == (one["method"] != "off")
        assert (one["speedup_low"] is None) == (batch == 2)  # one batch of each has no spread
    for method, total in report["totals"].items():
        ours = [one for one in report["rows"] if one["method"] == method]
        for name in ("tokens", "prompts", "decode_seconds"):
            assert total[name] == pytest.approx(sum(one[name] for one in ours))
        base = report["totals"]["off"]["tokens_per_second"]
        assert total["speedup"] == pytest.approx(total["tokens_per_second"] / base)


@pytest.mark.parametrize("temperature", ["0", "0.9"])
def test_every_method_answers_as_off_does(arguments: list[str], temperature: str) -> None:
    names = ",".join(name for name in SPECULATION_MODES if name != "static")
    report = run(arguments, "--methods", names, "--temperature", temperature, "--seed", "3")
    assert len(report["rows"]) == 2 * (len(SPECULATION_MODES) - 1)
    assert all(one["identical_to_off"] for one in report["rows"])


def test_prompts_that_are_too_long_make_room_for_others(arguments: list[str], tmp_path: Path) -> None:
    write(tmp_path / "d.jsonl", ("code", "w3 " * 20), ("code", "w4 w5"), ("code", "w6"))
    [one] = run(arguments, "--per-category", "1", "--methods", "off", "--max-prompt-tokens", "5")["rows"]
    assert one["prompts"] == 1


def test_a_run_goes_on_where_it_was(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C keeps what was measured; the rest is measured later, and nothing twice."""
    ran: list[int] = []
    original = measuring.run

    def interrupted(llm: SwiftLLM, number: int, *rest: Any) -> Record:
        if number == 2 and len(ran) == 4:
            raise KeyboardInterrupt
        ran.append(number)
        return original(llm, number, *rest)

    monkeypatch.setattr(measuring, "run", interrupted)
    first = run(arguments, "--methods", "ngram", status=command.INTERRUPTED)
    assert (first["batches_done"], first["batches"]) == (2, 4) and len(first["records"]) == 4
    ran.append(-1)  # go on
    whole = run(arguments, "--methods", "ngram", "--resume")
    assert ran == [0, 0, 1, 1, -1, 2, 2, 3, 3]
    assert whole["records"][:4] == first["records"] and whole["batches_done"] == 4
    again = run(arguments, "--methods", "ngram", "--resume")
    assert again["records"] == whole["records"] and ran[-1] == 3 and len(ran) == 9


def test_only_the_same_run_can_go_on(arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(arguments, "--methods", "ngram")
    refused = [
        (["--methods", "ngram", "--seed", "4"], "seed is 4, was 0"),
        (["--methods", "off"], "methods is ['off'], was ['off', 'ngram']"),
        (["--methods", "ngram", "--per-category", "1"], "prompts is "),
    ]
    for options, said in refused:
        with pytest.raises(SystemExit):
            command.main([*arguments, *options, "--resume"])
        assert said in capsys.readouterr().err
    (tmp_path / "out.json").write_text("{}")
    with pytest.raises(SystemExit):
        command.main([*arguments, "--methods", "ngram", "--resume"])
    assert "not a file of this command" in capsys.readouterr().err


def test_what_fails_is_counted_and_the_run_goes_on(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = SwiftLLM.generate

    def failing(llm: SwiftLLM, prompts: Any, params: Any) -> Any:
        if params.max_tokens == 9 and params.speculation == "ngram" and len(prompts[0]) == 1:
            raise EngineFailure("no numbers")
        answers = original(llm, prompts, params)
        if params.max_tokens == 9 and params.speculation == "auto":
            answers[0].token_ids[3] += 1
        return answers

    monkeypatch.setattr(SwiftLLM, "generate", failing)
    page = tmp_path / "out.html"
    more = ["--per-category", "3", "--methods", "ngram,auto", "--html", str(page)]
    report = run(arguments, *more, status=1)
    of = {(one["category"], one["method"]): one for one in report["rows"]}
    assert [of["code", name]["errors"] for name in ("off", "ngram", "auto")] == [0, 1, 0]
    assert of["code", "ngram"]["identical_to_off"] is False and of["code", "ngram"]["differing"] == 0
    assert of["code", "ngram"]["tokens"] == 16 and of["code", "off"]["tokens"] == 24
    assert of["code", "auto"]["differing"] == 3 and of["code", "auto"]["identical_to_off"] is False
    shown = capsys.readouterr().out
    assert "EngineFailure: no numbers" in shown
    assert all(said in page.read_text() for said in ("1 failed", "3 differ", "EngineFailure: no numbers"))


@pytest.mark.timeout(240)
def test_a_stream_and_its_page(arguments: list[str], tmp_path: Path) -> None:
    page = tmp_path / "reports" / "out.html"
    more = ["--stream", "code,chat,code", "--per-category", "1", "--methods", "ngram,fixed", "--html", str(page)]
    write(tmp_path / "d.jsonl", *(("humaneval", text) for _, text in ROWS[:3]), ("writing", "w3"), ("stem", "w8"))
    report = run(arguments, *more, "--rows", "guide", "--confidence-threshold", "0")
    assert [(one["segment"], one["category"]) for one in report["stream"]] == [
        ("code", "humaneval"), ("chat", "writing"), ("code", "humaneval"),
    ]  # fmt: skip
    for one in report["stream"]:
        assert set(one["methods"]) == {"off", "ngram", "fixed"} and one["methods"]["off"]["speedup"] == 1.0
    assert {one["category"] for one in report["rows"]} == {"HumanEval", "MT-Bench"}
    check_page(page, tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--methods", "off,ngrm"], "unknown: ngrm; known are auto"),
        (["--methods", "static"], "--methods static needs --layer-sets"),
        (["--stream", "code,mixed"], "--stream mixed: 2 more prompts are wanted, 0 are left; known: code, chat"),
        (["--stream", "code", "--mixed"], "one of them"),
        (["--batch", "0"], "must be at least 1, got 0"),
        (["--max-prompt-tokens", "1", "--per-category", "1", "--stream", "chat"], "1 more prompts are wanted"),
    ],
)
def test_what_is_asked_for_wrongly(
    arguments: list[str], options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main([*arguments, *options])
    assert stopped.value.code == 2 and said in " ".join(capsys.readouterr().err.split())


def prompts(*categories: str) -> list[Prompt]:
    return [Prompt(category, [i]) for i, category in enumerate(categories)]


def test_orders() -> None:
    def names(ordered: list[Prompt]) -> list[tuple[Any, ...]]:
        return [(one.category, *one.token_ids) for one in ordered]

    mixed = prompts("code", "code", "code", "chat", "prose", "prose")
    assert names(alternating(mixed)) == [
        ("code", 0), ("chat", 3), ("prose", 4), ("code", 1), ("prose", 5), ("code", 2),
    ]  # fmt: skip
    known = prompts("humaneval", "writing", "humaneval", "stem", "coding", "writing")
    stream = in_segments(known, ["chat", "code", "chat"], 1)
    assert names(stream) == [("writing", 1), ("humaneval", 0), ("stem", 3)]
    assert [one.segment for one in stream] == ["chat", "code", "chat"]
    assert [len(some) for some in batches(prompts("a", "a", "a", "b"), 2)] == [2, 1, 1]


def test_methods() -> None:
    """`off` is always there, and first."""
    assert methods("fixed,off,fixed") == ["off", "fixed"]


def completion(*token_ids: int, **stats: Any) -> Completion:
    return Completion("", list(token_ids), "length", 3, RequestStats(**stats))


def records(*filled: tuple[int, str, list[Completion]]) -> Iterator[Record]:
    for number, method, outputs in filled:
        one = Record(number, "c", method, len(outputs))
        one.fill(outputs)
        yield one


def test_what_is_added_up() -> None:
    """The token that a prompt yields takes no decode time, and does not count; a batch takes as long as its slowest."""
    some = {"draft_tokens": 4, "accepted_draft_tokens": 1, "first_draft_tokens": 2, "accepted_first_draft_tokens": 1}
    offs = [completion(1, 2, 3, decode_seconds=2.0, rounds=2), completion(4, 5, 6, decode_seconds=1.0, rounds=2)]
    ons = [
        completion(1, 2, 3, decode_seconds=1.0, rounds=1, layer_set="0xc", draft_cost_ratio=0.5, **some),
        completion(4, 5, 9, decode_seconds=0.5, rounds=1, layer_set="0xc", draft_cost_ratio=0.7, search_seconds=0.1),
    ]
    plain, drafted = records((0, "off", offs), (0, "fixed", ons))
    drafted.compare(plain)
    plain.compare(plain)
    made = row("c", "fixed", [plain, drafted])
    assert (made["tokens"], made["decode_seconds"], made["tokens_per_second"], made["speedup"]) == (4, 1.0, 4.0, 2.0)
    assert (made["acceptance_rate"], made["first_acceptance_rate"], made["tokens_per_round"]) == (0.25, 0.5, 2.0)
    assert (made["draft_cost_ratio"], made["search_share"], made["layer_sets"]) == (pytest.approx(0.6), 0.1, ["0xc"])
    assert (made["identical_to_off"], made["differing"], made["prompts"]) == (False, 1, 2)
    assert cell(made) == "2.00x · 0.60 · 0.25 · 2.00 (1 differ)"
    assert row("c", "off", [plain, drafted])["identical_to_off"] is True


def test_a_batch_without_its_baseline_has_no_speed_up_and_is_not_identical() -> None:
    good, on, other = records(
        (0, "off", [completion(1, 2, decode_seconds=1.0)]),
        (0, "fixed", [completion(1, 2, decode_seconds=0.5)]),
        (1, "fixed", [completion(1, 2, decode_seconds=9.0)]),
    )
    failed = Record(1, "c", "off", 1, error="EngineFailure: x")
    for one, plain in ((good, good), (on, good), (other, failed), (failed, failed)):
        one.compare(plain)
    every = [good, on, failed, other]
    assert row("c", "fixed", every)["speedup"] == 2.0 and not row("c", "fixed", every)["identical_to_off"]
    assert totals_of(every, ["off", "fixed"])["off"]["errors"] == 1
    assert [one["errors"] for one in rows_of(every, ["off"])] == [1]
    assert [one["methods"]["off"]["errors"] for one in stream_of(every, ["off"])] == [0, 1]
