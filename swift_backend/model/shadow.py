"""What would the model say with some of its sublayers left out? Asked of positions that it has already computed.

Each position's query reads the full model's keys and values for the past, which the cache holds, and its own for
itself: what the first token of a draft sees there. So many positions go through in one pass, nothing is written, and
the cache is not copied.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from swift_backend.kv_cache import KVCache
from swift_backend.model.attention import soft_cap
from swift_backend.model.decoder import Decoder
from swift_backend.model.layers import AttentionSublayer, MlpSublayer, NoSublayer, ParallelSublayer, Rotary


@dataclass(frozen=True, slots=True)
class Past:
    """The committed slots [start, start + length) of a sequence, and what its rows may see of them.

    hidden, hidden_in_window: bool [rows, length], True where a row may not look, in full and in windowed layers.
    """

    start: int
    length: int
    hidden: torch.Tensor
    hidden_in_window: torch.Tensor

    @classmethod
    def of(cls, start: int, positions: torch.Tensor, window: int | None) -> Past:
        """For rows at these positions, int64 [rows]; the cache must hold all before the last of them."""
        length = int(positions.max())
        columns = torch.arange(length, device=positions.device)[None, :]
        hidden = columns >= positions[:, None]
        return cls(start, length, hidden, hidden | (columns <= positions[:, None] - window) if window else hidden)

    def repeated(self, times: int) -> Past:
        """For the same rows several times over."""
        hidden, windowed = self.hidden.repeat(times, 1), self.hidden_in_window.repeat(times, 1)
        return Past(self.start, self.length, hidden, windowed)


@dataclass(frozen=True, slots=True)
class Shadow:
    """Positions of one sequence that can be asked again, sublayer by sublayer, for several candidates at a time.

    embedded: their tokens' hidden states before the first sublayer, [positions, hidden].
    """

    embedded: torch.Tensor
    _decoder: Decoder
    _cache: KVCache
    _at: torch.Tensor  # int64 [positions]
    _past: Past

    @classmethod
    def of(
        cls, decoder: Decoder, cache: KVCache, extent_start: int, token_ids: Seq[int], positions: Seq[int]
    ) -> Shadow:
        """For the tokens at these positions, in an extent that begins at slot extent_start; see shadow_logits."""
        device = decoder.embedding.device
        at = torch.tensor(positions, dtype=torch.int64, device=device)
        tokens = torch.tensor(token_ids, dtype=torch.int64, device=device)
        embedded = F.embedding(tokens, decoder.embedding).to(decoder.activation_dtype)
        return cls(embedded, decoder, cache, at, Past.of(extent_start, at, decoder.config.window))

    @property
    def num_sublayers(self) -> int:
        """Of the model."""
        return len(self._decoder.sublayers)

    @torch.inference_mode()
    def after(self, index: int, states: Seq[torch.Tensor]) -> list[torch.Tensor]:
        """What a sublayer makes of each candidate's states, [positions, hidden] each."""
        sublayer = self._decoder.sublayers[index]
        if isinstance(sublayer, NoSublayer):
            return list(states)
        x = y = torch.cat(list(states))
        if isinstance(sublayer, AttentionSublayer | ParallelSublayer):
            attention = sublayer.attention if isinstance(sublayer, ParallelSublayer) else sublayer
            cos, sin = (table[self._at].repeat(len(states), 1, 1) for table in self._decoder.rotary)
            past = self._past.repeated(len(states))
            y = y + attention.out(_attend(attention, x, past, self._cache, (cos, sin)))
        if isinstance(sublayer, MlpSublayer | ParallelSublayer):
            mlp = sublayer.mlp if isinstance(sublayer, ParallelSublayer) else sublayer
            y = y + mlp.added(x)
        return list(y.split(self._at.shape[0]))

    @torch.inference_mode()
    def logits(self, states: Seq[torch.Tensor]) -> torch.Tensor:
        """Of each candidate's states after the last sublayer: float32 [candidates, positions, vocab]."""
        logits = self._decoder.head(self._decoder.norm(torch.cat(list(states)))).float()
        return logits.view(len(states), self._at.shape[0], -1)


def shadow_logits(
    decoder: Decoder, cache: KVCache, extent_start: int, token_ids: Seq[int], positions: Seq[int], skips: Seq[int]
) -> torch.Tensor:
    """Logits, float32 [len(skips), positions, vocab], of the model without the sublayers in each mask of skips.

    token_ids: the tokens at these positions of one sequence, whose extent begins at slot extent_start; the cache holds
    the full model's keys and values of everything before them. Bit i of a mask is sublayer i.
    """
    return logits_without(Shadow.of(decoder, cache, extent_start, token_ids, positions), skips)


def logits_without(shadow: Shadow, skips: Seq[int]) -> torch.Tensor:
    """See shadow_logits."""
    tree = _Tree(shadow.embedded, skips)
    for index in range(shadow.num_sublayers):
        chosen = tree.branches(index)
        if chosen:
            after = shadow.after(index, [tree.states[one] for one in chosen])
            tree.grow(index, dict(zip(chosen, after, strict=True)))
    return shadow.logits(tree.states)[tree.owner]


class _Tree:
    """The hidden states of all candidates, [positions, hidden] each; those who skipped alike so far share one."""

    def __init__(self, state: torch.Tensor, skips: Seq[int]) -> None:
        self.states = [state]
        self.owner = [0] * len(skips)
        self._skips = skips

    def branches(self, sublayer: int) -> list[int]:
        """The states that somebody wants this sublayer applied to."""
        wanted = {one for one, skip in zip(self.owner, self._skips, strict=True) if not skip >> sublayer & 1}
        return sorted(wanted)

    def grow(self, sublayer: int, computed: dict[int, torch.Tensor]) -> None:
        """Move on to the states after the sublayer: computed, or as they were where it is skipped."""
        kept = [not skip >> sublayer & 1 for skip in self._skips]
        keys = list(zip(self.owner, kept, strict=True))
        distinct = list(dict.fromkeys(keys))
        self.states = [computed[one] if keep else self.states[one] for one, keep in distinct]
        self.owner = [distinct.index(key) for key in keys]


def _attend(sublayer: AttentionSublayer, x: torch.Tensor, past: Past, cache: KVCache, rotary: Rotary) -> torch.Tensor:
    """Attention of rows x [rows, hidden] over the past and themselves: [rows, heads * head_dim]."""
    heads, kv_heads, size = sublayer.num_heads, sublayer.num_kv_heads, sublayer.head_dim
    keys, values = cache.keys[sublayer.layer][0], cache.values[sublayer.layer][0]
    projected = sublayer.project(x, keys.dtype, rotary)
    rows, group = x.shape[0], heads // kv_heads
    query = projected[:, :heads].view(rows, kv_heads, group, size)
    own_key, own_value = projected[:, heads:].split(kv_heads, dim=1)  # [rows, kv_heads, head_dim] each
    by_head = query.transpose(0, 1).reshape(kv_heads, rows * group, size)
    theirs = (by_head @ keys.narrow(1, past.start, past.length).transpose(-1, -2)).view(kv_heads, rows, group, -1)
    own = (query * own_key.unsqueeze(2)).sum(-1).transpose(0, 1).unsqueeze(-1)  # [kv_heads, rows, group, 1]
    scores = torch.cat((theirs, own), dim=-1) * sublayer.scale
    scores = scores if sublayer.cap is None else soft_cap(scores, sublayer.cap)
    hidden = past.hidden_in_window if sublayer.windowed else past.hidden
    scores[..., :-1].masked_fill_(hidden[None, :, None, :], -torch.inf)
    weights = torch.softmax(scores, dim=-1)
    seen = weights[..., :-1].reshape(kv_heads, rows * group, -1) @ values.narrow(1, past.start, past.length)
    out = seen.view(kv_heads, rows, group, size) + weights[..., -1:] * own_value.transpose(0, 1).unsqueeze(2)
    return out.permute(1, 0, 2, 3).reshape(rows, heads * size)
