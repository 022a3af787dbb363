"""SWIFT: self-speculative decoding by skipping the model's own layers, for Triton and for Python."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swift_backend.errors import InvalidRequest, ModelLoadError, SwiftError
    from swift_backend.llm import Completion, SwiftLLM
    from swift_backend.params import SamplingParams

__all__ = ["Completion", "InvalidRequest", "ModelLoadError", "SamplingParams", "SwiftError", "SwiftLLM"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the launcher and the tokenizer step need no torch."""
    for module in ("errors", "params", "llm") if name in __all__ else ():
        found = getattr(import_module(f"{__name__}.{module}"), name, None)
        if found is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
