"""What else can go wrong in a benchmark is said, and takes nothing of what was measured with it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest.speedup import __main__ as command
from loadtest.speedup.rows import totals_of
from swift_backend import SwiftLLM
from swift_backend.errors import EngineFailure


@pytest.fixture
def arguments(tiny_model: Callable[[str], Path], tmp_path: Path) -> list[str]:
    data, out = tmp_path / "d.jsonl", tmp_path / "out.json"
    data.write_text(json.dumps({"question_id": 0, "category": "code", "turns": ["w3 w4"]}), encoding="utf-8")
    options = ["--dtype", "float32", "--max-tokens", "9", "--ignore-eos", "--json", str(out)]
    return ["--model", str(tiny_model("llama")), "--dataset", str(data), *options]


def kept(arguments: list[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(Path(arguments[-1]).read_text(encoding="utf-8"))
    return report


def test_nothing_measured_is_nothing_identical() -> None:
    assert totals_of([], ["off"])["off"]["identical_to_off"] is False


def test_memory_is_that_of_auto_where_it_is_measured(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def measured(model: str | None, dtype: str, methods: list[str], **options: Any) -> list[dict[str, Any]]:
        asked.append(methods)
        return []

    monkeypatch.setattr(command, "measured", measured)
    assert command.main([*arguments, "--methods", "auto,ngram", "--memory"]) == 0
    assert command.main([*arguments, "--methods", "skip,ngram", "--memory"]) == 0
    assert asked == [["off", "auto"], ["off", "ngram"]]


def test_memory_that_cannot_be_measured_is_said_and_the_rest_is_kept(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*rest: Any, **options: Any) -> list[dict[str, Any]]:
        raise subprocess.CalledProcessError(3, ["python"])

    monkeypatch.setattr(command, "measured", failing)
    page = tmp_path / "out.html"
    status = command.main([*arguments, "--methods", "ngram", "--memory", "--html", str(page)])
    assert status == 1 and "--memory: a process failed with exit status 3" in " ".join(capsys.readouterr().out.split())
    assert len(kept(arguments)["records"]) == 2 and page.exists()


def test_a_failing_warm_up_is_no_end(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    original = SwiftLLM.generate

    def failing(llm: SwiftLLM, prompts: Any, params: Any) -> Any:
        if params.speculation == "ngram":
            raise EngineFailure("no numbers")
        return original(llm, prompts, params)

    monkeypatch.setattr(SwiftLLM, "generate", failing)
    assert command.main([*arguments, "--methods", "ngram,fixed"]) == 1
    assert {one["method"]: one["errors"] for one in kept(arguments)["rows"]} == {"off": 0, "ngram": 1, "fixed": 0}


def test_what_no_request_may_ask_is_refused_before_measuring(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main([*arguments, "--temperature", "99"])
    assert stopped.value.code == 2 and "temperature must be in" in capsys.readouterr().err
