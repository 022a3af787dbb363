"""Where are the prompts that come with the load tests?"""

from __future__ import annotations

from pathlib import Path

SAMPLE = Path(__file__).resolve().parents[1] / "sample.jsonl"
