"""Whether a GGUF file was converted before, and who converts it if two processes ask at once."""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from swift_backend.errors import ModelLoadError
from swift_backend.model.file_hash import HashMemo
from swift_backend.model.gguf_convert import convert_gguf
from swift_backend.model.gguf_header import GgufHeader, read_gguf_header
from swift_backend.model.manifest import damage, write_manifest


@dataclass(frozen=True, slots=True)
class _Conversion:
    gguf: Path
    sha256: str
    dtype: str
    models: Path

    @property
    def entry(self) -> Path:
        """`models/<name>-<digest>-<dtype>`: another file, or another dtype, is another entry."""
        name = re.sub(r"[^\w.-]+", "_", self.gguf.stem)
        return self.models / f"{name}-{self.sha256[:16]}-{self.dtype}"

    def damage(self) -> str | None:
        return damage(self.entry, self.sha256)


def converted_directory(gguf: Path, dtype: str, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """The Hugging Face directory made of `gguf`, converted now if the cache has no whole one. Raises ModelLoadError."""
    gguf, models = gguf.resolve(), cache_dir.expanduser().resolve() / "models"
    memo = HashMemo(models / "hashes.json")
    try:
        job = _Conversion(gguf, memo.digest(gguf), dtype, models)
        if job.damage() is not None:
            _convert_once(job, read_gguf_header(gguf), progress)
        memo.remember(gguf, job.sha256)
    except OSError as error:
        raise ModelLoadError(
            f"{gguf.name} cannot be converted into {models}: {error} (SWIFT_CACHE_DIR names another place)."
        ) from error
    return job.entry


def _convert_once(job: _Conversion, header: GgufHeader, progress: Callable[[str], None]) -> None:
    """Converts under the lock; whoever waited for it finds the work done."""
    job.models.mkdir(parents=True, exist_ok=True)
    with _lock(job.models, progress) as locked:
        if locked:
            _remove_leftovers(job)
        reason = job.damage()
        if reason is None:
            return
        again = f" again, the cached copy is damaged ({reason})" if job.entry.exists() else " once"
        progress(f"Converting {job.gguf.name} to {job.dtype}{again}; this can take a minute.")
        scratch = Path(tempfile.mkdtemp(prefix=f".{job.entry.name}.", dir=job.models))
        try:
            convert_gguf(job.gguf, header, scratch, job.dtype)
            write_manifest(scratch, job.sha256)
            _make_readable(scratch)
            _publish(job, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _make_readable(directory: Path) -> None:
    """Temporary directories and safetensors files are private; a cache may be shared between users."""
    directory.chmod(0o755)
    for file in directory.iterdir():
        file.chmod(0o644)


def _publish(job: _Conversion, scratch: Path) -> None:
    """Renames the finished directory into place; a whole one that another process put there first is kept."""
    if job.entry.exists():
        if job.damage() is None:
            return
        aside = scratch.with_name(scratch.name + ".damaged")
        os.rename(job.entry, aside)
        shutil.rmtree(aside, ignore_errors=True)
    try:
        os.rename(scratch, job.entry)
    except OSError:
        if job.damage() is not None:
            raise


def _remove_leftovers(job: _Conversion) -> None:
    """What a killed conversion left; only the holder of the lock may call this."""
    for leftover in job.models.glob(f".{job.entry.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextlib.contextmanager
def _lock(directory: Path, progress: Callable[[str], None]) -> Iterator[bool]:
    """Holds the only lock on `directory`, or yields False where the file system knows no locks."""
    descriptor = os.open(directory, os.O_RDONLY)  # locking the directory itself leaves no lock file behind
    try:
        yield _acquire(descriptor, progress)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, progress: Callable[[str], None]) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress("Another process is converting a model; waiting for it.")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True
