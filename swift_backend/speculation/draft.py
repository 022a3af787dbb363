"""What is a draft, and who makes one?"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch

from swift_backend.request_stats import VERIFIED, Round
from swift_backend.scheduler import Work

LAYER_SKIP, NGRAM, SIBLING, LOOKAHEAD, OTHER = "layer_skip", "ngram", "sibling", "lookahead", "other"


@dataclass(frozen=True, slots=True)
class Guess:
    """What a draft pass said about one position: how sure it was, and its favourites, the best first.

    after: the drafted tokens before that position.
    """

    after: tuple[int, ...]
    confidence: float
    token_ids: tuple[int, ...]

    def outcome(self, committed: Seq[int]) -> int | None:
        """The full model's token there, if a round that committed these tokens has come by."""
        depth = len(self.after)
        return committed[depth] if depth < len(committed) and tuple(committed[:depth]) == self.after else None


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed for the next positions of a sequence; empty means "no idea", which is normal.

    They are a tree: the first chain_length follow each other, the rest are alternatives to tokens of that chain and
    what follows those. A policy's are a comb: nothing follows its alternatives.

    token_ids: the chain, then the siblings. parents: for each the one before it, −1 for the first; empty for a mere
    chain. drafters: who proposed each, in the metrics. probs: for each token the distribution, float64 [vocab], that it
    was drawn from, None for one that was found rather than drawn; None altogether where acceptance does not need it.
    seconds: this sequence's share of the drafting time. passes: how many draft passes the sequence was in; skip_mask:
    the sublayers that those left out; guesses: what each of them said, whether its token is in the draft or not.
    window: how many of the last tokens are in the pass only to learn what the full model says after them; nobody
    proposes them, and they are neither counted nor accepted.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    drafters: tuple[str, ...] = ()
    chain_length: int = -1
    probs: tuple[torch.Tensor | None, ...] | None = None
    seconds: float = 0.0
    passes: int = 0
    skip_mask: int = 0
    guesses: tuple[Guess, ...] = ()
    window: int = 0

    def __post_init__(self) -> None:
        if not self.parents:
            object.__setattr__(self, "parents", tuple(range(-1, len(self.token_ids) - 1)))
        if not self.drafters:
            object.__setattr__(self, "drafters", (OTHER,) * len(self.token_ids))
        if self.chain_length < 0:
            nodes = enumerate(self.parents[: self.proposed])
            length = next((node for node, parent in nodes if parent != node - 1), self.proposed)
            object.__setattr__(self, "chain_length", length)
        assert len(self.token_ids) == len(self.parents) == len(self.drafters)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def proposed(self) -> int:
        """How many of its tokens may be accepted."""
        return len(self.token_ids) - self.window

    @property
    def chain(self) -> tuple[int, ...]:
        """The tokens that follow each other."""
        return self.token_ids[: self.chain_length]

    def before(self, node: int) -> tuple[int, ...]:
        """The drafted tokens up to a node, itself included; none before the first, which is −1."""
        path: list[int] = []
        while node >= 0:
            path.append(self.token_ids[node])
            node = self.parents[node]
        return tuple(reversed(path))

    def round(self, path: Seq[int], committed: int, verify_seconds: float, decide_seconds: float = 0.0) -> Round:
        """What became of it: path, the accepted nodes; committed: how many tokens the round yielded."""
        origins = [self.drafters[node] for node in path] + [VERIFIED] * (committed - len(path))
        accepted_chain = sum(node < self.chain_length for node in path)
        return Round(
            self.drafters[: self.proposed],
            tuple(origins),
            self.chain_length,
            accepted_chain,
            self.seconds,
            verify_seconds,
            decide_seconds,
            self.passes,
        )

    @property
    def skipped_sublayers(self) -> int:
        """How many sublayers its passes left out."""
        return self.skip_mask.bit_count()


class Drafter(Protocol):
    """Proposes tokens; never sees requests' outcomes, Triton or configuration."""

    def draft(self, plan: Seq[Work]) -> list[Draft]:
        """One draft for each work, of at most draft_budget tokens."""
        ...
