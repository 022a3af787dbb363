"""How does a pass run? Owns decoder and cache on their device; CUDA graphs will hide here."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch

from swift_backend.batch import BatchShape, RowGroup, build_batch
from swift_backend.kv_cache import KVCache
from swift_backend.model.decoder import Decoder, Head, Observer
from swift_backend.model.shadow import Shadow


class Runner:
    """Runs passes; knows nothing of requests."""

    def __init__(self, decoder: Decoder, cache: KVCache, device: torch.device) -> None:
        self.decoder = decoder
        self.cache = cache
        self.device = device
        config = decoder.config
        self._shape = BatchShape(config.num_heads // config.num_kv_heads, config.window)

    @torch.inference_mode()
    def forward(
        self,
        groups: Seq[RowGroup],
        kept: Seq[int] | None = None,
        observe: Observer | None = None,
        head: Head | None = None,
    ) -> torch.Tensor:
        """Logits, float32 [sum of num_logits, vocab], of the groups in order.

        kept: the sublayers to compute; None is the full model. head: in place of the model's own. Writes keys and
        values of the computed layers.
        """
        batch = build_batch(groups, self.device, self._shape)
        return self.decoder.forward(batch, self.cache, kept, observe, head)

    def shadow(self, extent_start: int, token_ids: Seq[int], positions: Seq[int]) -> Shadow:
        """These positions of a sequence, to be asked what the model would say without some sublayers; see Shadow.of."""
        return Shadow.of(self.decoder, self.cache, extent_start, token_ids, positions)

    def on_failure(self, tell: Callable[[Exception], None]) -> None:
        """Have `tell` called, on any thread, when passes cannot be run any more; one device has no such news."""

    def close(self) -> None:
        """End what runs beside this process; nothing does for one device."""
