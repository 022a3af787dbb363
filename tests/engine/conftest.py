"""What transformers answers: the reference of every exactness test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

Generate = Callable[[Path, list[int], int], list[int]]


@pytest.fixture(scope="session")
def transformers_greedy() -> Generate:
    """transformers_greedy(directory, prompt ids, n) is what `generate` adds, float32, at most n tokens."""
    from transformers import AutoModelForCausalLM

    loaded: dict[Path, torch.nn.Module] = {}

    @torch.inference_mode()
    def generate(directory: Path, prompt: list[int], max_tokens: int) -> list[int]:
        if directory not in loaded:
            loaded[directory] = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        ids = torch.tensor([prompt])
        model = loaded[directory]
        out = model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens, pad_token_id=0
        )
        return [int(token) for token in out[0, len(prompt) :]]

    return generate
