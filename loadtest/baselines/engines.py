"""Who is measured? Each engine reads a prompt and continues it greedily, and says how long the two took."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch

from loadtest.baselines.gguf_export import export
from swift_backend import SamplingParams, SwiftLLM


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds for the prompt and its first token, and for each token after; the tokens."""

    prefill: float
    per_token: float
    token_ids: list[int]


class Engine(Protocol):
    """One that can be measured."""

    name: str

    def run(self, prompt: Sequence[int], tokens: int) -> Run:
        """Exactly so many tokens after the prompt."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class Ours:
    """SwiftLLM in one of its ways of speculating; off is plain decoding."""

    def __init__(self, llm: SwiftLLM, speculation: str = "off") -> None:
        self.name = "ours" if speculation == "off" else f"ours, {speculation}"
        self._llm, self._speculation = llm, speculation

    def run(self, prompt: Sequence[int], tokens: int) -> Run:
        params = SamplingParams(max_tokens=tokens, speculation=self._speculation, ignore_eos=True)
        [out] = self._llm.generate([list(prompt)], params)
        return Run(out.stats.time_to_first_token, out.stats.decode_seconds / (tokens - 1), out.token_ids)

    def close(self) -> None:
        """The caller's model lives on."""


class Transformers:
    """generate, with the cache that it chooses."""

    name = "transformers"

    def __init__(self, directory: Path, dtype: str) -> None:
        from transformers import AutoModelForCausalLM

        loaded = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
        self._model: Any = loaded.eval()
        self._model.generation_config.eos_token_id = None  # min_new_tokens would forbid it instead: other answers

    @torch.inference_mode()
    def _generate(self, prompt: Sequence[int], tokens: int) -> tuple[float, list[int]]:
        ids = torch.tensor([list(prompt)])
        options = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        started = perf_counter()
        out = self._model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        return perf_counter() - started, out[0, len(prompt) :].tolist()

    def run(self, prompt: Sequence[int], tokens: int) -> Run:
        first, _ = self._generate(prompt, 1)
        whole, token_ids = self._generate(prompt, tokens)
        return Run(first, (whole - first) / (tokens - 1), token_ids)

    def close(self) -> None:
        del self._model


class LlamaCpp:
    """llama.cpp through llama-cpp-python, on the same weights in bfloat16."""

    name = "llama.cpp"

    def __init__(self, directory: Path, threads: int, context: int) -> None:
        """Raises ImportError without llama-cpp-python, NotExported for a family that cannot be written for it."""
        from llama_cpp import Llama

        self._folder = tempfile.TemporaryDirectory(prefix="swift-gguf-")
        path = Path(self._folder.name) / "model.gguf"
        export(directory, path)
        self._model: Any = Llama(
            str(path), n_ctx=context, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def run(self, prompt: Sequence[int], tokens: int) -> Run:
        model = self._model
        model.reset()
        started = perf_counter()
        model.eval(list(prompt))
        found = [self._best()]
        first = perf_counter()
        for _ in range(tokens - 1):
            model.eval(found[-1:])
            found.append(self._best())
        return Run(first - started, (perf_counter() - first) / (tokens - 1), found)

    def _best(self) -> int:
        """The likeliest token after the latest one."""
        import llama_cpp
        import numpy as np

        logits = llama_cpp.llama_get_logits_ith(self._model.ctx, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self._model.n_vocab(),)).argmax())

    def close(self) -> None:
        self._model.close()
        self._folder.cleanup()
