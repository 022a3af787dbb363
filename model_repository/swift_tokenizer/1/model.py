"""Triton's entry point of `swift_tokenizer`; the code is in swift_backend.serving."""

from typing import Any


class TritonPythonModel:
    """Imports the model when it is initialised: Triton starts a process before, only to look at this class."""

    def initialize(self, args: dict[str, str]) -> None:
        from swift_backend.serving.tokenizer_model import TritonPythonModel as Model

        self._model = Model()
        self._model.initialize(args)

    def execute(self, requests: list[Any]) -> Any:
        return self._model.execute(requests)

    def finalize(self) -> None:
        self._model.finalize()
