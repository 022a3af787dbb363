"""The benchmark's figures are what the engine did, and its JSON is the contract's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest import speedup
from loadtest.speedup import Prompt, Tally, alternating, main
from swift_backend import Completion
from swift_backend.request_stats import RequestStats

# ../shared/CONTRACT.md, "Benchmarks".
ROW = {
    "category", "method", "tokens", "decode_seconds", "tokens_per_second", "speedup", "acceptance_rate",
    "tokens_per_round", "draft_cost_ratio", "identical_to_off",
}  # fmt: skip


def write(path: Path, *rows: tuple[str, str]) -> Path:
    lines = [
        json.dumps({"question_id": i, "category": category, "turns": [text, "w5"]})
        for i, (category, text) in enumerate(rows)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def run(directory: Path, dataset: Path, out: Path, *more: str) -> dict[str, Any]:
    arguments = ["--model", str(directory), "--dtype", "float32", "--dataset", str(dataset), "--json", str(out)]
    assert main([*arguments, "--max-tokens", "9", "--ignore-eos", *more]) == 0
    report: dict[str, Any] = json.loads(out.read_text())
    return report


def test_a_mixed_stream_changes_its_topic_all_the_time() -> None:
    prompts = [Prompt(category, [i]) for i, category in enumerate(["code", "code", "code", "chat", "prose", "prose"])]
    order = [(prompt.category, *prompt.token_ids) for prompt in alternating(prompts)]
    assert order == [("code", 0), ("chat", 3), ("prose", 4), ("code", 1), ("prose", 5), ("code", 2)]


@pytest.mark.parametrize("batch", ["1", "2"])
def test_the_report_is_the_contracts(tiny_model: Callable[[str], Path], tmp_path: Path, batch: str) -> None:
    dataset = write(tmp_path / "d.jsonl", ("code", "w3 w4 w5"), ("chat", "w7 w8"), ("code", "w9 w3"), ("code", "w4"))
    options = ["--per-category", "2", "--methods", "fixed,similarity", "--confidence-threshold", "0", "--batch", batch]
    report = run(tiny_model("llama"), dataset, tmp_path / "out.json", *options)
    assert {"model", "dtype", "device", "rows", "totals"} == set(report)
    assert [(row["category"], row["method"]) for row in report["rows"]] == [
        (category, method) for category in ("code", "chat") for method in ("off", "fixed", "similarity")
    ]
    assert all(set(row) >= ROW for row in [*report["rows"], *report["totals"].values()])
    for row in report["rows"]:
        assert row["tokens"] == 8 * row["prompts"] and row["identical_to_off"] == row["prompts"]
        assert row["prompts"] == (2 if row["category"] == "code" else 1)
        assert (row["draft_cost_ratio"] > 0) == (row["method"] != "off")
    for method, total in report["totals"].items():
        ours = [row for row in report["rows"] if row["method"] == method]
        for name in ("tokens", "prompts", "identical_to_off", "decode_seconds"):
            assert total[name] == pytest.approx(sum(row[name] for row in ours))
        assert total["speedup"] == pytest.approx(
            total["tokens_per_second"] / report["totals"]["off"]["tokens_per_second"]
        )


def test_prompts_that_are_too_long_make_room_for_others(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    dataset = write(tmp_path / "d.jsonl", ("code", "w3 " * 20), ("code", "w4 w5"), ("code", "w6"))
    options = ["--per-category", "1", "--methods", "off", "--max-prompt-tokens", "5"]
    [row] = run(tiny_model("llama"), dataset, tmp_path / "out.json", *options)["rows"]
    assert row["prompts"] == 1


def completion(*token_ids: int, **stats: Any) -> Completion:
    return Completion("", list(token_ids), "length", 3, RequestStats(**stats))


def test_what_is_added_up() -> None:
    """The token that a prompt yields takes no decode time, and does not count; a batch takes as long as its slowest."""
    plain, drafted = Tally("c", "off"), Tally("c", "fixed")
    offs = [completion(1, 2, 3, decode_seconds=2.0, rounds=2), completion(4, 5, 6, decode_seconds=1.0, rounds=2)]
    some = {"draft_tokens": 4, "accepted_draft_tokens": 1, "first_draft_tokens": 2, "accepted_first_draft_tokens": 1}
    ons = [
        completion(1, 2, 3, decode_seconds=1.0, rounds=1, layer_set="0xc", draft_cost_ratio=0.5, **some),
        completion(4, 5, 9, decode_seconds=0.5, rounds=1, layer_set="0xc", draft_cost_ratio=0.7, search_seconds=0.1),
    ]
    plain.add(offs, offs)
    drafted.add(ons, offs)
    row = drafted.row(plain)
    assert (row["tokens"], row["decode_seconds"], row["tokens_per_second"], row["speedup"]) == (4, 1.0, 4.0, 2.0)
    assert (row["acceptance_rate"], row["first_acceptance_rate"], row["tokens_per_round"]) == (0.25, 0.5, 2.0)
    assert (row["draft_cost_ratio"], row["search_share"], row["layer_sets"]) == (pytest.approx(0.6), 0.1, ["0xc"])
    assert (row["identical_to_off"], row["prompts"]) == (1, 2)


def test_methods() -> None:
    """`off` is always there, and first; what is not known is refused by name."""
    assert speedup._methods("fixed,off,fixed") == ["off", "fixed"]
    with pytest.raises(Exception, match="unknown: ngrm; known are auto"):
        speedup._methods("off,ngrm")
