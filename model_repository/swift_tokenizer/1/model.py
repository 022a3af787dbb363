"""Triton's entry point of `swift_tokenizer`; the code is in swift_backend.serving."""

from swift_backend.serving.tokenizer_model import TritonPythonModel as TritonPythonModel
