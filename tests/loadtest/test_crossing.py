"""A crowd comes and goes: are tokens counted in the phase in which they came?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loadtest.crossing import Crossing, cross, print_report
from swift_backend.llm import SwiftLLM


def test_tokens_count_where_they_came() -> None:
    run = Crossing(came=[0.5, 1.0, 1.5, 2.0, 2.25, 2.5, 2.75, 3.0, 4.0, 5.0], joined=1.5, left=3.0)
    assert run.by_phase() == pytest.approx([2.0, 5 / 1.5, 1.0])
    assert run.by_second() == [1, 2, 4, 1, 1, 1]


@pytest.mark.parametrize("mode", ["off", "auto"])
def test_the_others_come_and_go_while_one_lasts(tiny_model: Callable[[str], Path], mode: str) -> None:
    llm = SwiftLLM(tiny_model("llama"), "float32", kv_cache_tokens=1024)
    run = cross(llm, [[3 + i, 5, 7] for i in range(4)], mode, 12)
    assert len(run.came) == 4 * 12 + 3 * 12
    assert run.came[0] < run.joined < run.left
    before = sum(at <= run.joined for at in run.came)
    assert 12 <= before < 3 * 12, "the others came after as many tokens, or a round more"
    assert sum(run.joined < at <= run.left for at in run.came) >= 3 * 12


def test_the_report_compares_with_the_first_method(capsys: pytest.CaptureFixture[str]) -> None:
    slow = Crossing(came=[0.0, 1.0, 2.0, 3.0], joined=1.0, left=2.0)
    fast = Crossing(came=[0.0, 0.5, 1.0, 1.5, 2.0, 3.0], joined=1.0, left=2.0)
    print_report({"off": [slow], "auto": [fast]})
    out = capsys.readouterr().out
    assert "2.0 (2.00)" in out and "1.0 (1.00)" in out
    print_report({"off": [fast], "auto": [Crossing(came=[0.0, 1.0], joined=0.5, left=0.9)]})  # nobody alone again
    assert "auto: others from 1 to 2 s; 2 2 1 1" in out
    assert "auto: others from 0 to 1 s; 1 1" in capsys.readouterr().out
