"""Triton's entry point of `swift_decoder`; the code is in swift_backend.serving."""

from swift_backend.serving.decoder_model import TritonPythonModel as TritonPythonModel
