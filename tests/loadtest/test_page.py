"""A page holds everything it needs, and whatever text it is given stays text."""

from __future__ import annotations

from pathlib import Path

import pytest
from plotly.graph_objects import Bar, Figure, Scatter

from loadtest.report.page import Grid, Section, page, write_page
from tests.loadtest.browser import check_page, open_page

HOSTILE = "</script><script>alert(1)</script>&amp;\"'"


def sections() -> list[Section]:
    wide = Grid(["category", *(f"a long head {i}" for i in range(20))], [["x" * 30, *("1.234" for _ in range(20))]] * 3)
    bars = Figure([Bar(x=["one", "two"], y=[1, 2], name="off"), Bar(x=["one", "two"], y=[2, 1], name="auto")])
    lines = Figure(Scatter(x=[1, 2, 3], y=[0.5, 0.7, 0.6], mode="lines+markers"))
    return [Section("Speed", "Higher is better.", [wide], [bars]), Section("Acceptance", figures=[lines])]


def test_text_stays_text() -> None:
    grid = Grid([HOSTILE], [[HOSTILE]])
    made = page(HOSTILE, {HOSTILE: HOSTILE}, [Section(HOSTILE, HOSTILE, [grid])])
    assert "<script>" not in made and made.count("&lt;/script&gt;") == 2 * 8  # the title twice


@pytest.mark.timeout(180)
def test_it_opens_offline_on_a_phone_and_on_a_desk(tmp_path: Path) -> None:
    path = tmp_path / "reports" / "page.html"
    write_page(path, "A page", {"machine": "2 cores " * 20, "command": "python -m x --" + "y" * 300}, sections())
    check_page(path, tmp_path)


@pytest.mark.timeout(180)
def test_a_browser_would_tell(tmp_path: Path) -> None:
    """What the test above looks for is seen when it is there."""
    path = tmp_path / "bad.html"
    path.write_text(
        "<!doctype html><div style='width: 3000px'>wide</div><script src='https://localhost:9/x.js'></script>"
        "<script>undefinedFunction()</script>"
    )
    seen = open_page(path, tmp_path)
    assert any("undefinedFunction" in line for line in seen.console)
    assert all(int(str(frame["needs"])) >= 3000 for frame in seen.frames)
    assert all(frame["asked"] == ["https://localhost:9/x.js"] for frame in seen.frames)
