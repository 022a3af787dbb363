"""The README says what the code does: its table of ranges is the code's, its Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swift_backend.params import SamplingParams
from swift_backend.request_keys import KEYS, SPECULATION_MODES

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def test_the_table_of_sampling_keys_is_the_codes() -> None:
    defaults = SamplingParams()
    expected = []
    for name, key in KEYS.items():
        default = getattr(defaults, name)
        shown = "–" if default is None or default == () else str(default).lower()
        expected.append(f"| {name} | {key.kind} | {shown} | {key.allowed} |")
    rows = re.search(r"\| key \| type .*?\n\|[-|]+\n(.*?)\n\n", README, re.DOTALL)
    assert rows is not None
    assert rows[1].split("\n") == expected


def test_every_speculation_mode_is_explained() -> None:
    assert set(re.findall(r"^\| `(\w+)`(?: \(default\))? \|", README, re.MULTILINE)) >= set(SPECULATION_MODES)


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_python_example_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With short answers where it names no length: 256 tokens would take a minute each."""
    _, *others = SamplingParams.__init__.__defaults__ or ()
    monkeypatch.setattr(SamplingParams.__init__, "__defaults__", (24, *others))
    assert SamplingParams().max_tokens == 24
    [code] = [one for one in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "SwiftLLM" in one]
    exec(compile(code, "README.md", "exec"), {})
    assert "Paris" in capsys.readouterr().out
