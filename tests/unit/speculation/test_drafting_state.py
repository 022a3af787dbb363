"""What a policy remembers of one request, and when it tries again."""

from __future__ import annotations

import pytest

from swift_backend.params import SamplingParams
from swift_backend.sequence import Extent, Request, Sequence
from swift_backend.speculation import drafting_state
from swift_backend.speculation.chances import MatchChances, no_matches
from swift_backend.speculation.drafting_state import FIRST_PAUSE, LONGEST_PAUSE, DraftingState
from swift_backend.speculation.ngram_store import NgramStore


def state(ngrams: bool = True) -> DraftingState:
    return DraftingState(ngrams=ngrams, layers=True, matches=MatchChances(no_matches()), store=NgramStore(0))


def sequence(tokens: list[int], kv_len: int) -> Sequence:
    made = Sequence(Request("r", tokens, SamplingParams(), print), 50, seed=0)
    made.extent = Extent(0, 64, kv_len)
    return made


def test_it_reads_as_far_as_the_cache_goes_and_a_token_more() -> None:
    one, text = state(), sequence([5, 6, 7, 5, 6, 7, 5], kv_len=2)
    one.read(text)
    assert one.text.tokens == [5, 6, 7]
    assert text.extent is not None
    text.extent.length = 6
    one.read(text)
    one.read(text)
    assert one.text.tokens == [5, 6, 7, 5, 6, 7, 5]
    one.propose(3)
    assert (one.matched, one.proposed) == (4, [6, 7, 5])
    one.propose(0)
    assert (one.matched, one.proposed) == (0, [])


def test_a_request_without_n_grams_reads_nothing() -> None:
    one = state(ngrams=False)
    one.read(sequence([5, 5, 5], kv_len=2))
    one.propose(3)
    assert one.proposed == []


def test_trials_that_do_not_pay_become_rarer_and_one_that_does_changes_that() -> None:
    one, waits = state(), []
    for _ in range(7):
        rounds = 0
        while not one.trial_due:
            one.note_passes(drafted=False, pays=False)
            rounds += 1
        waits.append(rounds)
        one.note_passes(drafted=True, pays=False)
    assert waits == [FIRST_PAUSE * 2**i for i in range(3)] + [LONGEST_PAUSE] * 4
    one.note_passes(drafted=True, pays=True)
    assert one.drafting and one.pause == FIRST_PAUSE
    one.note_passes(drafted=False, pays=False)
    assert not one.drafting and not one.trial_due


def test_a_trial_that_was_right_is_followed_by_another_at_once() -> None:
    """So that a drafter comes back within some rounds; where the next one is wrong, the pause is what it was."""
    one = state()
    one.waited = one.pause = LONGEST_PAUSE // 2
    for right in (True, True, False):
        assert one.trial_due
        one.note_passes(drafted=True, pays=False)
        one.note_favourites((5, 6), 5 if right else 6)
    assert not one.trial_due and one.pause == LONGEST_PAUSE
    assert (one.first.tried, one.second.right) == (pytest.approx(2.85, abs=0.01), 1)


def test_a_long_prompt_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is proposed before all of it is known: what comes after a match may be the text's own end."""
    monkeypatch.setattr(drafting_state, "MOST_READ", 3)
    one, text = state(), sequence([5, 6, 7, 5, 6, 7, 5], kv_len=6)
    for read, proposed in ((3, []), (6, []), (7, [6]), (7, [6])):
        one.read(text)
        one.propose(1)
        assert (len(one.text), one.proposed) == (read, proposed)


def test_the_pace_of_late() -> None:
    """Two tokens in rounds of 1.25 times a plain one's time; a round is never taken to be dearer than its tokens."""
    one = state()
    assert (one.tokens_a_round, one.cost_of_a_round) == (1.0, 1.0)
    one.note_speed(1, 1.5)
    assert (one.tokens_a_round, one.cost_of_a_round) == (1.0, pytest.approx(1.0))
    for _ in range(100):
        one.note_speed(2, 1.25)
    assert one.tokens_a_round == pytest.approx(2, abs=0.01)
    assert one.cost_of_a_round == pytest.approx(1.25, abs=0.01)


def test_what_is_expected_of_a_set_is_reckoned_once() -> None:
    one, asked = state(), list[int]()

    def reckon(mask: int) -> float:
        asked.append(mask)
        return mask / 10

    assert [one.expected(mask, lambda mask=mask: reckon(mask)) for mask in (5, 5, 6, 6)] == [0.5, 0.5, 0.6, 0.6]  # type: ignore[misc]
    assert asked == [5, 6]


def test_what_other_requests_wrote_is_proposed_where_more_of_the_text_agrees() -> None:
    one, text = state(), sequence([1, 2, 3, 4, 9, 1, 2, 3, 4], kv_len=8)
    one.store = NgramStore(100)
    one.store.add([7, 9, 1, 2, 3, 4, 8, 8])
    one.read(text)
    one.propose(2)
    assert (one.matched, one.proposed) == (5, [8, 8])
    one.store.add([1, 2, 3, 4, 6])
    one.propose(2)
    assert (one.matched, one.proposed) == (4, [9, 1])
