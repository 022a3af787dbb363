"""Which layer sets are known, and how did each do? A pool for all requests, which outlives the engine in a file."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from swift_backend.speculation.draft_vocabulary import TokenCounts
from swift_backend.speculation.pool_entries import PRIOR_ALPHA, Arm, Record, parse_arm, parse_record, part
from swift_backend.stored_json import read_json, write_json

POOL_VERSION = 1
SHIPPED = "shipped"
# An arm's evidence fades with each of its tokens: after 700 that are different, what was before counts half.
MEMORY = 0.999
# How many tokens of similar prompts count as much as all that an arm ever did.
PRIOR_TOKENS = 32.0
# Squared distance, on average over the coordinates, at which a record counts 1/e: two prompts drawn at random are 2
# apart. Deviations below the least are noise.
BANDWIDTH = 0.5
LEAST_DEVIATION = 1e-3

_log = logging.getLogger(__name__)


class Pool:
    """The layer sets of a model, in the order of their addition, and the latest requests that used them.

    tokens: how often each was there, in prompts and answers. changes: how often something was learnt.
    """

    def __init__(self, num_layers: int, most_arms: int = 16, most_records: int = 512) -> None:
        self.num_layers = num_layers
        self.tokens = TokenCounts()
        self.changes = 0
        self._most_arms = most_arms
        self._arms: dict[int, Arm] = {}
        self._records: deque[Record] = deque(maxlen=most_records)
        # float32 [records, n] and [n]: the records' profiles and how each coordinate deviates, until they change.
        self._profiles: tuple[torch.Tensor, torch.Tensor] | None = None

    def __iter__(self) -> Iterator[Arm]:
        return iter(self._arms.values())

    def __len__(self) -> int:
        return len(self._arms)

    def arm(self, skip_mask: int) -> Arm | None:
        """The arm with this mask, if it is known."""
        return self._arms.get(skip_mask)

    def add(self, skip_mask: int, origin: str) -> Arm:
        """The arm with this mask, which is there or is made; where there are too many, another one goes.

        That is the one with the least evidence, with its records, but no shipped one, and not the one added last, which
        had no chance yet. Where there are only such, the pool grows.
        """
        assert 0 <= skip_mask < 1 << 2 * self.num_layers, "mask out of range"
        if skip_mask not in self._arms:
            self._make_room()
            self._arms[skip_mask] = Arm(skip_mask, origin)
            self.changes += 1
        return self._arms[skip_mask]

    def merge(self, other: Pool, origin: str = SHIPPED) -> None:
        """Add the arms of another pool as proposed by `origin`, with evidence and records where they are new.

        An arm that is there keeps its own, and is shipped from now on if the other one is.
        """
        assert self.num_layers == other.num_layers, "a pool of another model"
        added: set[int] = set()
        for theirs in other:  # before any is added: what is shipped now is not to make room
            if theirs.skip_mask in self._arms and origin == SHIPPED:
                self._arms[theirs.skip_mask].origin = origin
        for theirs in other:
            if theirs.skip_mask not in self._arms:
                arm = self.add(theirs.skip_mask, origin)
                arm.first, arm.later = copy.deepcopy(theirs.first), copy.deepcopy(theirs.later)
                added.add(arm.skip_mask)
        # As if theirs were the latest: a pool that is full of its own would else forget what each set is for.
        self._keep([*self._records, *(record for record in other._records if record.skip_mask in added)])
        self.tokens.merge(other.tokens)

    def note(self, skip_mask: int, *, first: bool, confidence: float, accepted: bool) -> None:
        """Learn from a draft token all of whose predecessors in its round were accepted; first: it has none.

        confidence: its probability by the draft. A mask that is not, or no longer, known is ignored.
        """
        arm = self._arms.get(skip_mask)
        if arm is None:
            return
        self.changes += 1
        arm.first.fade(MEMORY)
        arm.later.fade(MEMORY)
        (arm.first if first else arm.later).note(confidence, accepted)

    def remember(self, profile: torch.Tensor, skip_mask: int, drafted: float, accepted: float) -> None:
        """Learn from a finished request that drafted with this mask; tokens count as in note.

        profile: float32 [n]. A request that drafted nothing, or overflowed, tells nothing.
        """
        if skip_mask in self._arms and drafted > 0 and bool(profile.isfinite().all()):
            self.changes += 1
            self._keep([*self._records, Record(skip_mask, drafted, accepted, profile.clone())])

    def note_text(self, prompt: Iterable[int], answer: Iterable[int]) -> None:
        """Learn which tokens there are from a finished request."""
        self.tokens.note(prompt, answer)
        self.changes += 1

    def expected_alpha(self, skip_mask: int, profile: torch.Tensor) -> float:
        """The share of tokens that this arm may expect to be accepted, of a prompt with this profile."""
        return self._expected(profile).get(skip_mask, PRIOR_ALPHA)

    def suggest(self, profile: torch.Tensor, value: Callable[[int, float], float]) -> int | None:
        """The mask of the highest value(mask, expected alpha), for a prompt with this profile; ties to the oldest."""
        expected = self._expected(profile)
        return max(expected, key=lambda skip_mask: value(skip_mask, expected[skip_mask]), default=None)

    def best(self, value: Callable[[int, float], float], origin: str | None = None) -> int | None:
        """The mask of the highest value(mask, alpha) over all texts; origin: among those that it proposed."""
        alphas = {arm.skip_mask: arm.alpha for arm in self if origin in (None, arm.origin)}
        return max(alphas, key=lambda skip_mask: value(skip_mask, alphas[skip_mask]), default=None)

    def to_content(self) -> dict[str, Any]:
        """For a JSON document; masks are hexadecimal, as operators read them."""
        return {
            "num_layers": self.num_layers,
            "tokens": self.tokens.to_content(),
            "arms": [{**asdict(arm), "skip_mask": hex(arm.skip_mask)} for arm in self],
            "records": [
                {
                    "skip_mask": hex(record.skip_mask),
                    "drafted": record.drafted,
                    "accepted": record.accepted,
                    "profile": record.profile.tolist(),
                }
                for record in self._records
            ],
        }

    @classmethod
    def from_content(cls, num_layers: int, content: Any) -> Pool:
        """The pool that to_content told of. Raises ValueError, with the reason, for anything that it cannot have."""
        if (theirs := part(content, "num_layers", int)) != num_layers:
            raise ValueError(f"it is for {theirs} layers, and not for {num_layers}")
        pool = cls(num_layers)
        if "tokens" in content:  # files of earlier versions have none
            pool.tokens = TokenCounts.from_content(part(content, "tokens", list))
        for one in part(content, "arms", list):
            arm = parse_arm(one, num_layers)
            if arm.skip_mask in pool._arms:
                raise ValueError(f"arm {arm.skip_mask:#x} is there twice")
            pool._arms[arm.skip_mask] = arm
        records = [parse_record(one, num_layers) for one in part(content, "records", list)]
        if strangers := [record for record in records if record.skip_mask not in pool._arms]:
            raise ValueError(f"a record is of {strangers[0].skip_mask:#x}, which is no arm")
        if len({record.profile.shape for record in records}) > 1:
            raise ValueError("profiles differ in length")
        pool._keep(records)
        return pool

    def _make_room(self) -> None:
        while len(self._arms) >= self._most_arms:
            others = [arm for arm in list(self)[:-1] if arm.origin != SHIPPED]
            if not others:
                return
            gone = min(others, key=lambda arm: arm.drafted).skip_mask
            del self._arms[gone]
            self._keep(self._records)

    def _keep(self, records: Iterable[Record]) -> None:
        """Have those of known arms, the latest if they are too many; who was measured unlike the last one goes too."""
        known = [record for record in records if record.skip_mask in self._arms]
        alike = [record for record in known if record.profile.shape == known[-1].profile.shape]
        self._records = deque(alike, maxlen=self._records.maxlen)
        self._profiles = None

    def _expected(self, profile: torch.Tensor) -> dict[int, float]:
        """Of each arm the share of tokens accepted: its own over all texts, and then that of similar prompts."""
        sums = {arm.skip_mask: (arm.alpha * PRIOR_TOKENS, PRIOR_TOKENS) for arm in self}
        for record, weight in zip(self._records, self._weights(profile), strict=True):
            accepted, drafted = sums[record.skip_mask]
            sums[record.skip_mask] = accepted + weight * record.accepted, drafted + weight * record.drafted
        return {skip_mask: accepted / drafted for skip_mask, (accepted, drafted) in sums.items()}

    def _weights(self, profile: torch.Tensor) -> list[float]:
        """How much each record says about a prompt with this profile, in [0, 1]."""
        if not self._records or self._records[0].profile.shape != profile.shape:
            return [0.0] * len(self._records)
        if self._profiles is None:
            profiles = torch.stack([record.profile for record in self._records])
            self._profiles = profiles, profiles.std(dim=0, correction=0).clamp(min=LEAST_DEVIATION)
        profiles, deviations = self._profiles
        distances = ((profiles - profile) / deviations).square().mean(dim=1)
        return (-distances / BANDWIDTH).exp().nan_to_num(0.0).tolist()


def load_pool(path: Path, num_layers: int) -> Pool:
    """The pool that a file holds; an empty one where there is none, or, with a warning, where it cannot be used."""
    content = read_json(path, POOL_VERSION)
    try:
        return Pool(num_layers) if content is None else Pool.from_content(num_layers, content)
    except ValueError as error:
        _log.warning("%s is not used: %s", path, error)
        return Pool(num_layers)


def save_pool(path: Path, pool: Pool) -> bool:
    """Write it down, and tell whether that could be done."""
    return write_json(path, POOL_VERSION, pool.to_content())
