"""How are the ranks' partial results added up? By torch.distributed: NCCL between GPUs, gloo on a CPU.

The group belongs to one engine, and is not torch's global one: a process may have several.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from swift_backend.errors import RankFailure
from swift_backend.parallel.share import Share

# Ranks do the same at the same time: whoever waits for so long waits for nobody.
PATIENCE = timedelta(seconds=120)
# torch types hardly any of what it exports here.
dist: Any = distributed


class Group:
    """A rank's connection to all others; nothing listens beyond this machine."""

    def __init__(self, share: Share, meeting_place: Path, device: torch.device) -> None:
        """Meet the others, all of whom must be on their way, by a file; RankFailure when one does not come."""
        self._device = device
        store = dist.FileStore(str(meeting_place), share.size)
        try:
            self._group = _nccl(store, share, device) if device.type == "cuda" else _gloo(store, share)
            everybody = int(self.add_up(torch.ones(1, device=device)).item())  # NCCL meets at the first sum only
        except RuntimeError as error:
            raise _lost(error) from error
        assert everybody == share.size

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of what all ranks have, the same bits for each; on a CPU in float32. RankFailure when one is gone."""
        total = part.float() if self._device.type == "cpu" else part
        try:
            self._group.allreduce([total]).wait()
        except RuntimeError as error:
            raise _lost(error) from error
        return total

    def abort(self) -> None:
        """Free whoever waits for a sum on a GPU, from another thread; gloo notices by itself."""
        if self._device.type == "cuda":
            self._group.abort()


def _gloo(store: Any, share: Share) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout, options._threads = PATIENCE, 1
    return dist.ProcessGroupGloo(store, share.rank, share.size, options)


def _nccl(store: Any, share: Share, device: torch.device) -> Any:
    torch.cuda.set_device(device)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = PATIENCE
    return dist.ProcessGroupNCCL(store, share.rank, share.size, options)


def _lost(error: RuntimeError) -> RankFailure:
    return RankFailure(f"the ranks have lost each other: {str(error).splitlines()[0]}")
