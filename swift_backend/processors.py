"""What does a request change in its logits before temperature? Penalties, then logit_bias, bad_words and min_tokens."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq

import numpy as np
import torch
from numpy.typing import NDArray

from swift_backend.params import SamplingParams

Ints = NDArray[np.int64]
FLOAT32 = torch.finfo(torch.float32)


class Processors:
    """One request's changes, and what they need to know of the tokens so far.

    Every question takes the tokens that were drafted after the committed ones, since a row in the middle of a draft
    must see those before it.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Iterable[int],
        bad_words: Iterable[Seq[int]],
        stop_ids: Collection[int],
    ) -> None:
        """bad_words: the id sequences that must not be completed. stop_ids: banned before min_tokens."""
        # No logit is divided by what float32 takes for zero.
        repetition = max(params.repetition_penalty, FLOAT32.tiny)
        self.penalties = (repetition, params.presence_penalty, params.frequency_penalty)
        self.bias_ids = np.array([token for token, _ in params.logit_bias], dtype=np.int64)
        self.biases = np.array([bias for _, bias in params.logit_bias], dtype=np.float32)
        self._penalised = params.has_penalties
        self._min_tokens = params.min_tokens
        self._stop_ids = list(stop_ids)
        self._last_ids: dict[tuple[int, ...], list[int]] = {}
        for word in bad_words:
            self._last_ids.setdefault(tuple(word[:-1]), []).append(word[-1])
        self._prefix_lengths = {len(prefix) for prefix in self._last_ids}
        self._longest = max(self._prefix_lengths, default=0)
        self._tail: list[int] = []
        self._num_output = 0
        self._slots: dict[int, int] = {}  # seen token → its place in the two arrays
        self._seen, self._counts = array("q"), array("q")
        for token in prompt_ids:
            self._see(token, 0)

    def append(self, token_id: int) -> None:
        """Note a committed token."""
        self._see(token_id, 1)
        self._num_output += 1

    def seen(self, drafted: Seq[int]) -> tuple[Ints, Ints]:
        """The distinct tokens of prompt and output that are penalised, and how often each is in the output."""
        if not self._penalised:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        counts, new = array("q", self._counts), dict[int, int]()
        for token in drafted:
            if token in self._slots:
                counts[self._slots[token]] += 1
            else:
                new[token] = new.get(token, 0) + 1
        ids = np.array(self._seen, dtype=np.int64)
        if new:
            return np.append(ids, list(new)), np.append(np.array(counts), list(new.values()))
        return ids, np.array(counts, dtype=np.int64)

    def banned(self, drafted: Seq[int]) -> list[int]:
        """Tokens that would complete a bad word, and tokens that would stop the request before min_tokens."""
        banned = self._stop_ids if self._num_output + len(drafted) < self._min_tokens else []
        if not self._last_ids:
            return banned
        tail = (*self._tail, *drafted)
        ends = (tail[len(tail) - length :] for length in self._prefix_lengths if length <= len(tail))
        return [*banned, *(token for end in ends for token in self._last_ids.get(end, ()))]

    def _see(self, token: int, count: int) -> None:
        if self._longest:
            self._tail = [*self._tail, token][-self._longest :]
        if not self._penalised:
            return
        slot = self._slots.setdefault(token, len(self._seen))
        if slot == len(self._seen):
            self._seen.append(token)
            self._counts.append(0)
        self._counts[slot] += count


def make_processors(
    params: SamplingParams, prompt_ids: Iterable[int], bad_words: Seq[Seq[int]], eos_ids: Collection[int]
) -> Processors | None:
    """A request's processors, or None where it changes no logits."""
    if not (params.has_penalties or params.logit_bias or bad_words or params.min_tokens):
        return None
    stop_ids = {*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)}
    return Processors(params, prompt_ids, bad_words, stop_ids)


def process(logits: torch.Tensor, rows: Seq[tuple[Processors | None, Seq[int]]]) -> None:
    """Change logits, float32 [rows, vocab], in place; each row has its request's processors and drafted tokens."""
    ours = [(row, processors, drafted) for row, (processors, drafted) in enumerate(rows) if processors is not None]
    if ours:
        _penalise(logits, ours)
        _add_bias(logits, ours)
        _ban(logits, ours)


Row = tuple[int, Processors, Seq[int]]


def _penalise(logits: torch.Tensor, rows: Seq[Row]) -> None:
    """Repetition as transformers has it, over prompt and output; presence and frequency as vLLM, over output."""
    seen = [processors.seen(drafted) for _, processors, drafted in rows]
    lengths = [len(ids) for ids, _ in seen]
    if not any(lengths):
        return
    places = _places(logits, rows, [ids for ids, _ in seen])
    counts = torch.from_numpy(np.concatenate([counts for _, counts in seen])).to(logits.device)
    each = np.repeat(np.array([processors.penalties for _, processors, _ in rows], np.float32), lengths, axis=0)
    repetition, presence, frequency = torch.from_numpy(each).to(logits.device).T
    values = logits[places]
    values = torch.where(values < 0, values * repetition, values / repetition).clamp_max_(FLOAT32.max / 2)
    logits[places] = values - frequency * counts - presence * (counts > 0)


def _add_bias(logits: torch.Tensor, rows: Seq[Row]) -> None:
    ids = [processors.bias_ids for _, processors, _ in rows]
    if any(map(len, ids)):
        biases = np.concatenate([processors.biases for _, processors, _ in rows])
        logits[_places(logits, rows, ids)] += torch.from_numpy(biases).to(logits.device)


def _ban(logits: torch.Tensor, rows: Seq[Row]) -> None:
    """Exclude banned tokens; where that would leave none, the row's bans are lifted."""
    ids = [np.array(processors.banned(drafted), dtype=np.int64) for _, processors, drafted in rows]
    if not any(map(len, ids)):
        return
    places = _places(logits, rows, ids)
    before = logits[places]
    logits[places] = -torch.inf
    dead = (logits.amax(dim=-1) == -torch.inf)[places[0]]
    if dead.any():
        logits[places[0][dead], places[1][dead]] = before[dead]


def _places(logits: torch.Tensor, rows: Seq[Row], ids: Seq[Ints]) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the ids of each row are in logits."""
    row = np.repeat(np.array([row for row, _, _ in rows], dtype=np.int64), [len(one) for one in ids])
    return torch.from_numpy(row).to(logits.device), torch.from_numpy(np.concatenate(ids)).to(logits.device)
