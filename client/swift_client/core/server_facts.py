"""What does a server say about itself?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swift_client.core.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Health:
    """live: it answers. ready: all of its models do. models: each of ours.

    >>> bool(Health(live=True, ready=True, models={"swift": True, "swift_decoder": False}))
    False
    """

    live: bool
    ready: bool
    models: Mapping[str, bool]

    def __bool__(self) -> bool:
        return self.live and self.ready and all(self.models.values())


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output of a model; -1 in its shape is any length.

    >>> TensorInfo("input_ids", "INT32", (-1,)).shape
    (-1,)
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as the server describes it.

    >>> ModelInfo("swift", "ensemble", ("1",), (), ()).platform
    'ensemble'
    """

    name: str
    platform: str
    versions: tuple[str, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """The server and our models.

    >>> Metadata("triton", "2.51.0", ("parameters",), {}).version
    '2.51.0'
    """

    server: str
    version: str
    extensions: tuple[str, ...]
    models: Mapping[str, ModelInfo]


def read_metadata(server: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]) -> Metadata:
    """From the answers to the questions "server" and, for each model, "model"."""
    try:
        infos = {name: _model(model) for name, model in models.items()}
        return Metadata(server["name"], server["version"], tuple(server["extensions"]), infos)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the server's metadata is not Triton's: {error!r}") from None


def _model(facts: Mapping[str, Any]) -> ModelInfo:
    tensors = (tuple(_tensor(one) for one in facts.get(side, ())) for side in ("inputs", "outputs"))
    return ModelInfo(facts["name"], facts["platform"], tuple(facts.get("versions", ())), *tensors)


def _tensor(facts: Mapping[str, Any]) -> TensorInfo:
    return TensorInfo(facts["name"], facts["datatype"], tuple(int(size) for size in facts["shape"]))
