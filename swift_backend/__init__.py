"""SWIFT: self-speculative decoding by skipping the model's own layers, for Triton and for Python."""

from swift_backend.errors import InvalidRequest, ModelLoadError, SwiftError
from swift_backend.llm import SwiftLLM
from swift_backend.params import SamplingParams

__all__ = ["InvalidRequest", "ModelLoadError", "SamplingParams", "SwiftError", "SwiftLLM"]
