"""Who runs in a step, with how many tokens and how much draft."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_

from swift_backend.params import SamplingParams
from swift_backend.scheduler import LEAST_CHUNK, Work, draft_limit, plan_step
from swift_backend.sequence import Extent, Request, Sequence


def sequence(prompt: int, kv_len: int = 0, output: int = 0, max_tokens: int = 50, **params: object) -> Sequence:
    request = Request("r", list(range(prompt)), SamplingParams(max_tokens=max_tokens, **params), print)  # type: ignore[arg-type]
    made = Sequence(request, max_tokens, seed=0, text=None, extent=Extent(0, 512, kv_len))
    made.tokens += range(output)
    return made


class NoHurry:
    """A pace at which everything fits, or what a test says."""

    def __init__(self, longest: int = 99, chunks: Sequence_[int] = ()) -> None:
        self._longest, self._chunks = longest, list(chunks)
        self.asked: list[tuple[int, int, int]] = []

    def draft_limit(self, decoding: list[Sequence], chunks: list[Work], num_drafting: int, most: int) -> int:
        self.asked.append((len(decoding), num_drafting, most))
        return min(most, self._longest)

    def chunk(self, decoding: list[Sequence], chunks: list[Work], prompts: list[Sequence]) -> int:
        return self._chunks[len(chunks)] if self._chunks else 10**6


def granted(
    running: list[Sequence], budget: int, gamma: int = 5, pace: NoHurry | None = None
) -> list[tuple[int, int, int]]:
    """(index, tokens, draft) of each work."""
    plan = plan_step(running, budget, gamma, pace or NoHurry())
    return [(running.index(w.sequence), w.num_tokens, w.draft_budget) for w in plan]


def test_a_sequence_wants_what_it_has_not_computed_plus_its_draft() -> None:
    assert granted([sequence(10), sequence(6, kv_len=8, output=3)], 100) == [(1, 1, 5), (0, 10, 0)]


def test_decoding_goes_before_prefill_and_prefill_takes_the_rest() -> None:
    decoding = sequence(4, kv_len=5, output=2)
    assert granted([sequence(100), decoding], 20) == [(1, 1, 0), (0, 19, 0)]


def test_a_chunked_prompt_goes_on_where_it_stopped() -> None:
    assert granted([sequence(100, kv_len=90)], 20) == [(0, 10, 0)]
    assert plan_step([sequence(100, kv_len=90)], 20, 5, NoHurry())[0].reaches_end
    assert not plan_step([sequence(100, kv_len=70)], 20, 5, NoHurry())[0].reaches_end


def test_drafts_get_what_is_left_after_every_token_and_prompt() -> None:
    running = [sequence(3, kv_len=4, output=2) for _ in range(4)]
    assert granted(running, 8) == [(0, 1, 4), (1, 1, 0), (2, 1, 0), (3, 1, 0)]
    assert granted([*running, sequence(3)], 12) == [(0, 1, 5), (1, 1, 0), (2, 1, 0), (3, 1, 0), (4, 3, 0)]


def test_nobody_starves_when_the_budget_is_smaller_than_the_crowd() -> None:
    """A prompt always gets a token; of the rest those that come first, and the engine puts the unserved first."""
    running = [sequence(3, kv_len=4, output=2) for _ in range(6)]
    assert granted(running, 4) == [(0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 1, 0)]
    assert granted([*running, sequence(9)], 4) == [(0, 1, 0), (1, 1, 0), (2, 1, 0), (6, 1, 0)]
    assert granted([*running, sequence(9)], 1) == [(6, 1, 0)]


def test_a_draft_never_exceeds_what_may_still_be_committed() -> None:
    """SWIFT B8; max_tokens=1 must not draft (reference §7.6)."""
    assert draft_limit(sequence(3, output=1, max_tokens=50), 5) == 5
    assert draft_limit(sequence(3, output=1, max_tokens=4), 5) == 2
    assert draft_limit(sequence(3, output=1, max_tokens=2), 5) == 0
    assert draft_limit(sequence(3, output=0, max_tokens=1), 5) == 0


def test_the_request_may_ask_for_shorter_drafts_or_none() -> None:
    assert draft_limit(sequence(3, output=1, max_draft_tokens=2), 5) == 2
    assert draft_limit(sequence(3, output=1, max_draft_tokens=0), 5) == 0
    assert draft_limit(sequence(3, output=1, speculation="off"), 5) == 0


def test_a_prompts_chunk_is_what_the_pace_allows_beside_the_decoding_ones() -> None:
    decoding = sequence(4, kv_len=5, output=2)
    assert granted([sequence(100), decoding], 500, pace=NoHurry(chunks=[30])) == [(1, 1, 5), (0, 30, 0)]
    assert granted([sequence(100), sequence(50)], 500, pace=NoHurry(chunks=[30, 12])) == [(0, 30, 0), (1, 12, 0)]
    assert granted([sequence(100), sequence(50)], 500, pace=NoHurry(chunks=[30, 0])) == [(0, 30, 0)]


def test_a_prompt_moves_on_however_dear_its_tokens_are() -> None:
    """Only the first: the others have their turn when it is through."""
    running = [sequence(100), sequence(50), sequence(4, kv_len=5, output=2)]
    assert granted(running, 500, pace=NoHurry(chunks=[0, 0])) == [(2, 1, 5), (0, LEAST_CHUNK, 0)]


def test_drafts_are_as_long_as_pays_in_this_batch() -> None:
    running = [sequence(3, kv_len=4, output=2), sequence(3, kv_len=4, output=2, speculation="off"), sequence(9)]
    pace = NoHurry(longest=2)
    assert granted(running, 500, pace=pace) == [(0, 1, 2), (1, 1, 0), (2, 9, 0)]
    assert pace.asked == [(2, 1, 5)]


def test_a_paused_sequence_gets_nothing() -> None:
    running = [sequence(3, kv_len=4, output=2), sequence(9), sequence(9)]
    running[0].paused = running[1].paused = True
    assert granted(running, 500) == [(2, 9, 0)]
