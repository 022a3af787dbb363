"""A conversion that the tests of this folder look at."""

from pathlib import Path

import pytest

from swift_backend.model.checkpoint import resolve_model
from tests.unit.model.tiny_gguf import write_gguf


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """(GGUF file, converted directory, progress lines) of one conversion."""
    folder = tmp_path_factory.mktemp("gguf")
    source = write_gguf(folder / "tiny model.gguf")
    lines: list[str] = []
    return source, resolve_model(str(source), "float32", cache_dir=folder / "cache", progress=lines.append), lines
