"""Prompts that begin alike: what is kept, what is copied, and what is dropped when room is needed."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swift_backend.kv_cache import KVCache
from swift_backend.params import SamplingParams
from swift_backend.prefix_cache import LEAST_SHARED, PrefixCache
from swift_backend.sequence import Extent, Request, Sequence

A, B, C, D = ([first, *range(20, 39)] for first in (1, 2, 3, 4))  # 20 tokens each, different from the first on


class Bench:
    """A prefix cache and the sequences that have places in it; a slot holds what its token and all before it are."""

    def __init__(self, capacity: int = 160, enabled: bool = True) -> None:
        self.kv = KVCache(2, capacity, kv_heads=1, head_dim=1, dtype=torch.float64, device=torch.device("cpu"))
        self.prefixes = PrefixCache(self.kv, enabled=enabled)
        self.running: list[Sequence] = []

    def enter(self, prompt: Seq[int], max_tokens: int = 12) -> Sequence | None:
        sequence = Sequence(Request("r", list(prompt), SamplingParams(), print), max_tokens, seed=0)
        if not self.prefixes.reserve(sequence, self.running):
            return None
        self.running.append(sequence)
        return sequence

    def compute(self, sequence: Sequence, count: int) -> None:
        """Let tokens that are known go through the model."""
        self.write(sequence, sequence.tokens[: sequence.kv_len + count])
        assert sequence.extent
        self.kv.commit(sequence.extent, count)

    def write(self, sequence: Sequence, tokens: Seq[int]) -> None:
        """Fill the slots of the tokens that are not committed."""
        assert sequence.extent
        for position in range(sequence.kv_len, len(tokens)):
            for layer, both in enumerate(self.kv.slots):
                both[sequence.extent.start + position] = mark(tokens[: position + 1]) + layer

    def leave(self, sequence: Sequence, reason: str = "length") -> None:
        sequence.finish_reason = reason
        self.running.remove(sequence)
        self.prefixes.give_back(sequence)

    def answer(self, prompt: Seq[int], output: int = 0, reason: str = "length") -> Sequence:
        """A whole request: its prompt and so many output tokens (50, 51, …), the last of which is not in the cache."""
        sequence = self.enter(prompt)
        assert sequence is not None
        sequence.tokens += range(50, 50 + output)
        self.compute(sequence, len(sequence.tokens) - sequence.kv_len - (output > 0))
        self.leave(sequence, reason)
        return sequence

    def check(self, sequence: Sequence) -> None:
        """AssertionError when a committed slot does not hold what its place in the text asks for."""
        assert sequence.extent
        for layer, both in enumerate(self.kv.slots):
            found = both[sequence.extent.start : sequence.extent.start + sequence.kv_len]
            expected = [mark(sequence.tokens[: n + 1]) + layer for n in range(sequence.kv_len)]
            assert found[:, 0, 0].tolist() == found[:, 1, 0].tolist() == expected


def mark(tokens: Seq[int]) -> float:
    """A number that these tokens have and no others."""
    return float(hash(tuple(tokens)) % 2**50)


@pytest.fixture
def bench() -> Bench:
    return Bench(capacity=160)


def reused(bench: Bench, prompt: Seq[int]) -> int:
    """How much of the prompt was known; looks at every copied slot, and takes the sequence out again."""
    sequence = bench.enter(prompt, max_tokens=1)
    assert sequence is not None
    assert sequence.reused_tokens == sequence.kv_len
    bench.check(sequence)
    bench.leave(sequence, "error")
    return sequence.reused_tokens


@pytest.mark.parametrize(
    ("prompt", "shared"),
    [
        (A, 19),  # identical: the last token is computed in any case
        ([*A, 9, 9], 20),
        ([*A, 50, 51, 52], 22),  # and the answer, but for the token that was not computed
        ([*A[:19], 0], 19),
        (A[:18], 17),
        (A[:17], 16),
        (A[:16], 0),  # too little to be worth a copy
        ([*A[:16], 0, 0], 16),
        ([*A[:15], 0, 0], 0),
        ([0, *A[1:]], 0),
    ],
)
def test_how_much_a_prompt_shares_with_what_was_kept(bench: Bench, prompt: list[int], shared: int) -> None:
    bench.answer(A, output=3)
    assert reused(bench, prompt) == shared


def test_what_is_kept_is_not_used_up(bench: Bench) -> None:
    bench.answer(A)
    assert [reused(bench, [*A, 9]) for _ in range(3)] == [20, 20, 20]


def test_the_longest_beginning_wins(bench: Bench) -> None:
    for prompt in ([*A[:16], 7, 7, 7], [*A[:18], 8, 8], [*A[:17], 9, 9]):
        bench.answer(prompt)
    assert reused(bench, A) == 18


def test_one_text_is_kept_once(bench: Bench) -> None:
    """A longer one takes the place of its own beginning, and a shorter one adds nothing."""
    bench.answer(A)
    assert bench.kv.tokens_kept == 32
    bench.answer([*A, *A])
    assert bench.kv.tokens_kept == 48
    bench.answer(A)
    bench.answer([*A, *A])
    assert bench.kv.tokens_kept == 48
    assert reused(bench, [*A, *A, 9]) == 40


@pytest.mark.parametrize("reason", ["stop", "length", "cancelled", "timeout"])
def test_whatever_ends_a_request_what_it_computed_is_kept(bench: Bench, reason: str) -> None:
    bench.answer(A, reason=reason)
    assert (reused(bench, [*A, 9]), bench.kv.tokens_used, bench.kv.tokens_kept) == (20, 0, 32)


def test_nothing_is_kept_of_a_request_that_failed(bench: Bench) -> None:
    """Whatever broke it may be in its slots."""
    bench.answer(A, reason="error")
    assert (reused(bench, [*A, 9]), bench.kv.tokens_kept) == (0, 0)


def test_nothing_is_kept_or_shared_when_switched_off() -> None:
    bench = Bench(enabled=False)
    running = bench.enter(A)
    assert running
    bench.compute(running, 20)
    assert reused(bench, A) == 0
    bench.leave(running)
    assert (reused(bench, A), bench.kv.tokens_kept, bench.kv.tokens_used) == (0, 0, 0)


def test_nothing_is_kept_of_less_than_is_worth_a_copy(bench: Bench) -> None:
    bench.answer(A[:15])
    assert (LEAST_SHARED, bench.kv.tokens_kept) == (16, 0)
    bench.answer(A[:16])
    assert bench.kv.tokens_kept == 16


def test_of_a_cancelled_prefill_the_computed_part_is_kept(bench: Bench) -> None:
    sequence = bench.enter([*A, *A])
    assert sequence
    bench.compute(sequence, 25)
    bench.write(sequence, [*sequence.tokens[:25], 0, 0, 0])
    bench.leave(sequence, "cancelled")
    assert (reused(bench, [*A, *A]), bench.kv.tokens_kept) == (25, 32)


def test_a_rejected_draft_is_not_kept(bench: Bench) -> None:
    """vllm PR#18668: 70 and 71 were drafted after 50, and the answer went on with 60."""
    sequence = bench.enter(A)
    assert sequence
    sequence.tokens.append(50)
    bench.compute(sequence, 20)
    bench.write(sequence, [*A, 50, 70, 71])
    assert sequence.extent
    bench.kv.commit(sequence.extent, 1)
    sequence.tokens.append(60)
    bench.leave(sequence)
    assert reused(bench, [*A, 50, 70, 71, 9]) == 21
    assert reused(bench, [*A, 50, 60, 9]) == 21


def test_the_computed_part_of_a_running_prompt_is_shared(bench: Bench) -> None:
    sequence = bench.enter([*A, *A])
    assert sequence
    assert reused(bench, [*A, *A]) == 0
    bench.compute(sequence, 15)
    assert reused(bench, [*A, *A]) == 0
    bench.compute(sequence, 7)
    assert reused(bench, [*A, *A]) == 22
    bench.compute(sequence, 18)
    assert reused(bench, [*A, *A]) == 39


def test_the_source_may_be_gone_before_its_copy(bench: Bench) -> None:
    first = bench.enter(A)
    assert first
    bench.compute(first, 20)
    second = bench.enter([*A, 9])
    assert second and second.reused_tokens == 20
    bench.leave(first, "error")
    assert bench.enter(B)  # takes the first one's slots
    bench.compute(bench.running[-1], 20)
    bench.check(second)


def test_the_least_recently_used_is_dropped_first() -> None:
    """A was used since it was kept, so B goes for D, and then C for E."""
    bench = Bench(capacity=128)
    for prompt in (A, B, C):
        bench.answer(prompt)
    assert reused_and_kept(bench, [*A, 9]) == (20, {1, 2, 3})
    bench.answer(D)
    assert kept(bench) == {1, 2, 3, 4}
    bench.answer([5, *A[1:]])
    assert kept(bench) == {1, 3, 4, 5}
    bench.answer([6, *A[1:]])
    assert kept(bench) == {1, 4, 5, 6}


def kept(bench: Bench) -> set[int]:
    """The first token of each kept text."""
    return {int(prefix.tokens[0]) for prefix in bench.prefixes._kept}


def reused_and_kept(bench: Bench, prompt: list[int]) -> tuple[int, set[int]]:
    return reused(bench, prompt), kept(bench)


def test_the_same_text_again_counts_as_use() -> None:
    """Two that came together: the second ends later, and adds nothing but that."""
    bench = Bench(capacity=96)
    first, second = bench.enter(A), bench.enter(A)
    assert first and second
    bench.compute(first, 20)
    bench.compute(second, 20)
    bench.leave(first)
    bench.answer(B)
    bench.leave(second)
    bench.answer(C)
    bench.answer(D)
    assert kept(bench) == {1, 3, 4}


def test_no_more_is_dropped_than_needed() -> None:
    bench = Bench(capacity=128)
    for prompt in (A, B, C):
        bench.answer(prompt)
    assert bench.enter(D, max_tokens=12)
    assert kept(bench) == {1, 2, 3}
    assert bench.enter(D, max_tokens=12)
    assert kept(bench) == {2, 3}


def test_a_request_that_needs_everything_gets_it() -> None:
    """What it could have begun with is dropped too: room comes first."""
    bench = Bench(capacity=96)
    for prompt in (A, B):
        bench.answer(prompt)
    sequence = bench.enter([*A, 9], max_tokens=75)
    assert sequence
    assert (sequence.extent, sequence.reused_tokens, kept(bench)) == (Extent(0, 96), 0, set())


def test_the_source_is_dropped_last() -> None:
    """The oldest, but the others' room is enough."""
    bench = Bench(capacity=96)
    for prompt in (A, B, C):
        bench.answer(prompt)
    sequence = bench.enter([*A, 9], max_tokens=43)
    assert sequence
    assert (sequence.reused_tokens, kept(bench)) == (20, {1})
    bench.check(sequence)


def test_a_request_that_has_to_wait_drops_nothing() -> None:
    """It would lose the prefixes of others for nothing."""
    bench = Bench(capacity=96)
    assert bench.enter(B)
    bench.answer(A)
    assert bench.enter(C, max_tokens=45) is None
    assert kept(bench) == {1}
    assert bench.enter(C, max_tokens=44)
    assert kept(bench) == set()


def test_the_profile_of_the_source_comes_with_the_copy(bench: Bench) -> None:
    """The mean of 20 tokens, taken as that of the 17 that are copied; none where it was not looked at."""
    first = bench.enter(A)
    assert first
    first.note_profile(torch.tensor([0.5, 0.2]), 20)
    bench.compute(first, 20)
    running = bench.enter([*A[:17], 9])
    bench.leave(first)
    later, other = bench.enter([*A[:17], 8]), bench.enter(B)
    assert running and later and other
    for sequence in (running, later):
        assert sequence.profile is not None
        torch.testing.assert_close(sequence.profile, torch.tensor([0.5, 0.2]))
        assert sequence.profile_tokens == 17
    assert other.profile is None


class AnyOrderOfRequests(RuleBasedStateMachine):
    """Whatever comes, goes and is dropped: a sequence's committed slots hold its own text."""

    @initialize(capacity=st.sampled_from([64, 100, 160]))
    def start(self, capacity: int) -> None:
        self.bench = Bench(capacity)

    @rule(
        start=st.sampled_from([A, B, [*A[:18], *B], [*A, *A]]),
        length=st.integers(1, 40),
        end=st.lists(st.integers(0, 1), max_size=3),
        max_tokens=st.integers(1, 40),
    )
    def enter(self, start: list[int], length: int, end: list[int], max_tokens: int) -> None:
        bench, prompt = self.bench, [*start[:length], *end][: self.bench.kv.capacity - max_tokens] or [5]
        texts = [list(prefix.tokens) for prefix in bench.prefixes._kept]
        texts += [one.request.prompt_ids[: one.kv_len] for one in bench.running]
        sequence = bench.enter(prompt, max_tokens)
        if sequence is None:
            assert bench.running, "an empty cache has room for whatever fits it"
            return
        bench.check(sequence)
        assert sequence.kv_len == sequence.reused_tokens < len(prompt)
        best = max((shared(text, prompt) for text in texts), default=0)
        assert sequence.reused_tokens in (0, best if best >= 16 else 0)
        if len(bench.prefixes._kept) + len(bench.running) - 1 == len(texts):
            assert sequence.reused_tokens == (best if best >= 16 else 0)  # nothing was dropped for it

    @precondition(lambda self: self.bench.running)
    @rule(which=st.integers(0, 9), count=st.integers(1, 50))
    def prefill(self, which: int, count: int) -> None:
        sequence = self.bench.running[which % len(self.bench.running)]
        left = sequence.num_prompt_tokens - sequence.kv_len
        self.bench.compute(sequence, max(0, min(left, count)))

    @precondition(lambda self: self.bench.running)
    @rule(which=st.integers(0, 9), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=4), good=st.integers(1, 4))
    def decode(self, which: int, tokens: list[int], good: int) -> None:
        """A round that writes all of a draft and commits a part of it."""
        bench, sequence = self.bench, self.bench.running[which % len(self.bench.running)]
        tokens = tokens[: sequence.remaining]
        if sequence.kv_len < len(sequence.tokens) - 1 or not tokens:
            return
        assert sequence.extent
        bench.write(sequence, [*sequence.tokens, *tokens][:-1])
        first = len(sequence.tokens) - sequence.kv_len
        sequence.tokens += tokens[:good]
        bench.kv.commit(sequence.extent, first + len(tokens[:good]) - 1)

    @precondition(lambda self: self.bench.running)
    @rule(which=st.integers(0, 9), reason=st.sampled_from(["stop", "length", "cancelled", "timeout", "error"]))
    def leave(self, which: int, reason: str) -> None:
        self.bench.leave(self.bench.running[which % len(self.bench.running)], reason)

    @invariant()
    def slots_are_right(self) -> None:
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        bench.kv.check_integrity()
        assert bench.kv.tokens_used == sum(one.extent.size for one in bench.running if one.extent)
        assert bench.kv.tokens_kept == sum(prefix.extent.size for prefix in bench.prefixes._kept)
        for sequence in bench.running:
            bench.check(sequence)


def shared(text: Seq[int], prompt: Seq[int]) -> int:
    count = 0
    while count < min(len(text), len(prompt) - 1) and text[count] == prompt[count]:
        count += 1
    return count


TestAnyOrderOfRequests = AnyOrderOfRequests.TestCase
TestAnyOrderOfRequests.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
