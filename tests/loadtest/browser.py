"""What does a browser say of a page? Chromium without a window, from Debian's packages, and nothing but the file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

WIDTHS = (360, 1280)
# A window cannot be as narrow as a phone; a frame can.
FRAMES = """<!doctype html><title>waiting</title>{frames}<script>
function look(frame) {{
  const inside = frame.contentWindow, root = inside.document.scrollingElement;
  return {{width: frame.width * 1, needs: root.scrollWidth,
          asked: inside.performance.getEntriesByType("resource").map(one => one.name),
          drawn: inside.document.querySelectorAll(".main-svg").length}};
}}
window.addEventListener("load", () => setTimeout(() => {{
  document.title = JSON.stringify([...document.querySelectorAll("iframe")].map(look));
  document.body.replaceChildren();
}}, 3000));
</script>"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of opening a page: lines of the console, and for each width what the page needs, asks for and drew."""

    console: list[str]
    frames: list[dict[str, object]]


def open_page(path: Path, folder: Path) -> Seen:
    """Skips, with a reason, where there is no Chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no chromium here: apt-get install chromium")
    frames = "".join(f'<iframe src="{path.as_uri()}" width="{width}" height="900"></iframe>' for width in WIDTHS)
    (folder / "frames.html").write_text(FRAMES.format(frames=frames))
    options = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--allow-file-access-from-files",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=8000", "--enable-logging=stderr", "--v=0",
        "--window-size=1400,1000", f"--user-data-dir={folder / 'profile'}", "--dump-dom",
    ]  # fmt: skip
    command = [browser, *options, (folder / "frames.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None, done.stderr
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(console, json.loads(unescape(title[1])))


def check_page(path: Path, folder: Path, *, figures: bool = True) -> None:
    """No complaint, no request to anywhere, no sideways scrolling on a phone or a desk; figures are drawn."""
    seen = open_page(path, folder)
    assert seen.console == []
    assert [frame["width"] for frame in seen.frames] == list(WIDTHS)
    for frame in seen.frames:
        assert frame["asked"] == []
        assert int(str(frame["needs"])) <= int(str(frame["width"]))
        assert (int(str(frame["drawn"])) > 0) == figures
