"""Who runs in a step, with how many tokens and how much draft."""

from __future__ import annotations

from swift_backend.params import SamplingParams
from swift_backend.scheduler import draft_limit, plan_step
from swift_backend.sequence import Extent, Request, Sequence


def sequence(prompt: int, kv_len: int = 0, output: int = 0, max_tokens: int = 50, **params: object) -> Sequence:
    request = Request("r", list(range(prompt)), SamplingParams(max_tokens=max_tokens, **params), print)  # type: ignore[arg-type]
    made = Sequence(request, max_tokens, seed=0, text=None, extent=Extent(0, 512, kv_len))
    made.tokens += range(output)
    return made


def granted(running: list[Sequence], budget: int, gamma: int = 5) -> list[tuple[int, int, int]]:
    """(index, tokens, draft) of each work."""
    return [(running.index(w.sequence), w.num_tokens, w.draft_budget) for w in plan_step(running, budget, gamma)]


def test_a_sequence_wants_what_it_has_not_computed_plus_its_draft() -> None:
    assert granted([sequence(10), sequence(6, kv_len=8, output=3)], 100) == [(1, 1, 5), (0, 10, 0)]


def test_decoding_goes_before_prefill_and_prefill_takes_the_rest() -> None:
    decoding = sequence(4, kv_len=5, output=2)
    assert granted([sequence(100), decoding], 20) == [(1, 1, 0), (0, 19, 0)]


def test_a_chunked_prompt_goes_on_where_it_stopped() -> None:
    assert granted([sequence(100, kv_len=90)], 20) == [(0, 10, 0)]
    assert plan_step([sequence(100, kv_len=90)], 20, 5)[0].reaches_end
    assert not plan_step([sequence(100, kv_len=70)], 20, 5)[0].reaches_end


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
