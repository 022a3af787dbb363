"""The search between rounds: which set wins? B12, B13, B15 and B16 of the reference, §2."""

from __future__ import annotations

import random

import pytest

from swift_backend.sequence import Sequence
from swift_backend.speculation import search as module
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.proposals import Proposals
from swift_backend.speculation.search import MARGIN, OnlineSearch
from tests.unit.speculation.scripted_trials import LAYERS, STEEP, WIDE, A, B, C, Listed, Script, decode, searching, text


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    made = Script()
    monkeypatch.setattr(module, "try_sets", made)
    return made


@pytest.mark.parametrize(("right", "winner"), [(0.0, A), (0.5, A), (0.7, A), (1.0, B)])
def test_the_first_candidate_replaces_the_incumbent_only_if_it_is_better(
    script: Script, right: float, winner: int
) -> None:
    """B12: there the first score to beat is 0, so that the first one at random wins."""
    script.rates = {1: {A: 0.7, B: right}}
    proposals = Listed(B)
    search = searching(script, proposals)
    decode(search, text(200), 30)
    assert search.incumbent == winner and search.layer_set == LayerSet(LAYERS, winner)
    mask, ahead = proposals.noted[0]
    assert mask == B and (ahead > MARGIN) == (winner == B)


def test_what_counts_is_speed(script: Script) -> None:
    """A set that is right as often and leaves out more is faster; one that leaves out less is not."""
    script.rates = {1: {A: 0.8, WIDE: 0.8, 0b100: 0.8}}
    search = searching(script, Listed(0b100, WIDE))
    decode(search, text(200), 120)
    assert search.incumbent == WIDE and script.candidates[:2] == [0b100, WIDE]


def test_after_a_shift_of_topic_the_better_set_of_now_wins(script: Script) -> None:
    """B13: there the score of an easy text stands for ever. Here each trial is of both sets, at the same positions."""
    script.rates = {1: {A: 0.9, B: 0.6}, 2: {A: 0.4, B: 0.7}}
    search = searching(script, Listed(B, A))
    decode(search, text(200, topic=1), 100)
    assert search.incumbent == A
    decode(search, text(200, topic=2), 100)
    assert search.incumbent == B
    decode(search, text(200, topic=1), 100)
    assert search.incumbent == A
    assert {tuple(skips) for _, skips in script.trials} == {(A, B), (B, A)}


def test_what_is_remembered_is_the_set_that_was_tried(script: Script) -> None:
    """B15: there it is a point near it."""
    script.rates = {1: {A: 0.5, B: 0.1, C: 0.9, WIDE: 0.2}}
    proposals = Listed(B, C, WIDE)
    decode(searching(script, proposals), text(200), 80)
    noted = [mask for mask, _ in proposals.noted]
    assert noted[:3] == script.candidates[:3] == [B, C, WIDE]
    assert [score > 0 for _, score in proposals.noted[:3]] == [False, True, False]


def test_two_searches_do_not_influence_each_other(script: Script) -> None:
    """B16: there all that is known is global."""
    script.rates = {1: {A: 0.5, B: 0.9, C: 0.2}, 2: {A: 0.5, B: 0.1, C: 0.9}}

    def trials(other: OnlineSearch | None) -> list[tuple[list[int], list[int]]]:
        search, found = searching(script, Proposals(range(2, 10), interval=1000)), []
        for _ in range(60):
            begin = len(script.trials)
            decode(search, text(200), 1)
            found += script.trials[begin:]
            if other is not None:
                decode(other, text(200, topic=2), 1)
        return found

    alone = trials(None)
    other = searching(script, Proposals(range(2, 10), interval=1000), seed=5)
    assert trials(other) == alone
    other.incumbent = C
    assert searching(script, Listed(B)).incumbent == A


def test_who_is_no_better_loses_its_turn(script: Script) -> None:
    """After eight positions; then the next one is tried."""
    script.rates = {1: {A: 0.8, B: 0.8, C: 0.0}}
    proposals = Listed(B, C)
    search = searching(script, proposals)
    decode(search, text(200), 5)
    assert [skips[1] for _, skips in script.trials] == [B, B, C, C, B]
    assert proposals.noted[0] == (B, 0.0) and search.incumbent == A


# Of four positions both are right at one, B alone at two and A alone at one.
LEAD: dict[int, dict[int, float | str]] = {1: {A: "1001", B: "0111"}}


def test_who_leads_wins_once_that_is_no_luck(script: Script) -> None:
    """By 13 of 39 positions at which they differ, after 52: 13 > 2 √40, and 12 of 36 is not enough."""
    script.rates = LEAD
    search = searching(script, Listed(B))
    decode(search, text(200), 12)
    assert search.incumbent == A
    decode(search, text(200), 1)
    assert search.incumbent == B


def test_who_leads_but_does_not_win_gives_up_in_the_end(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TRIED", 48)
    script.rates = LEAD
    search = searching(script, proposals := Listed(B, C))
    decode(search, text(200), 13)
    assert script.candidates == [B, C] and search.incumbent == A
    assert [mask for mask, _ in proposals.noted] == [B] and proposals.noted[0][1] > MARGIN


@pytest.mark.parametrize(("right", "wins"), [(0.75, 0), (0.8, 6), (0.95, 58)])
def test_luck_hardly_ever_wins(script: Script, right: float, wins: int) -> None:
    """A is right at 80 of 100 positions, and who is right where is drawn for each; 100 races."""
    script.rates, script.luck = {1: {A: 0.8, B: right}}, random.Random(0)
    won = 0
    for _ in range(100):
        search = searching(script, proposals := Listed(B))
        while not proposals.noted:
            decode(search, text(200), 1)
        won += search.incumbent == B
    assert won == wins


def test_a_suggestion_is_tried_next(script: Script) -> None:
    search = searching(script, Listed(B))
    for mask in (0, A, C, WIDE):  # nothing left out, the incumbent itself; and then one is on
        search.suggest(mask)
    decode(search, text(200), 1)
    assert script.candidates == [C]


def test_the_first_set_is_the_incumbent(script: Script) -> None:
    """Whatever was suggested before, or comes to begin with after it."""
    search = OnlineSearch(None, STEEP, Listed(C), most_draft_tokens=5, share=1.0)  # type: ignore[arg-type]
    assert search.incumbent is None and search.layer_set is None
    search.suggest(A)
    search.begin_with(A)
    search.begin_with(B)
    decode(search, text(200), 1)
    assert search.incumbent == A and script.candidates == [C]


@pytest.mark.parametrize("proposed", [A, 0])
def test_what_is_no_other_set_is_not_tried(script: Script, proposed: int) -> None:
    """A model of two layers has nothing to propose; and drafts that leave nothing out are none."""
    assert decode(searching(script, Listed(proposed)), text(200), 5) == [0.0] * 5
    assert script.trials == []


def test_everything_tried_is_told(script: Script) -> None:
    script.rates = {1: {A: 1.0}}
    told: list[tuple[int, int, int, Sequence]] = []
    one = text(200)
    decode(searching(script, Listed(B), on_trial=lambda *what: told.append(what)), one, 1)
    assert told == [(A, 4, 4, one), (B, 0, 4, one)]


def test_each_text_has_its_own_set_and_each_set_its_race(script: Script) -> None:
    """Two kinds of text in turn; on one B is better than A, on the other it is worse than C."""
    script.rates = {1: {A: 0.5, B: 0.9}, 2: {C: 0.9, B: 0.1}}
    search = searching(script, Listed(B))
    one, other = text(200, 1, skip_mask=A), text(200, 2, skip_mask=C)
    found: list[tuple[int, int]] = []
    for _ in range(60):
        for topic, sequence in enumerate((one, other), 1):
            search.round_done(sequence, 0.5)
            if search.better is not None:
                found.append((topic, search.better.skip_mask))
                sequence.layer_set = LayerSet(LAYERS, search.better.skip_mask)
    assert found == [(1, B)]
    assert {tuple(skips) for _, skips in script.trials} >= {(A, B), (C, B)}
    assert not [skips for _, skips in script.trials if skips in ([A, C], [C, A])]


def test_nobody_waits_for_the_race_of_another_set(script: Script) -> None:
    """Nor for one whose text cannot bear more: A's, which is short and has had its trial."""
    script.rates = {1: {A: 0.5, B: 0.6}, 2: {C: 0.5, B: 0.6}}
    search = searching(script, Listed(B))
    short, other = text(200, 1, skip_mask=A), text(200, 2, skip_mask=C)
    search.suggest(B, A), search.suggest(B, C)
    for _ in range(20):
        short.search_seconds += search.round_done(short, 0.5)
        search.round_done(other, 0.5)
    assert [skips for _, skips in script.trials].count([A, B]) == 1
    assert [skips for _, skips in script.trials].count([C, B]) > 10


def test_a_suggestion_that_has_lost_is_not_made_again(script: Script) -> None:
    """A rule that looks at the text has the same idea again and again; against another set it may be right."""
    script.rates = {1: {A: 0.5, B: 0.1, WIDE: 0.1}}
    search = searching(script, Listed(C))
    for _ in range(10):
        search.suggest(B)
        decode(search, text(200), 8)
    assert [mask for mask in script.candidates if mask == B] == [B]
    search.suggest(B, WIDE)
    decode(search, text(200, skip_mask=WIDE), 1)
    assert script.trials[-1][1] == [WIDE, B]


def test_races_of_sets_that_are_gone_are_forgotten(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RACES", 2)
    monkeypatch.setattr(module, "MOST_LOSERS", 3)
    search = searching(script, Listed(B))
    for number in range(20):
        search.suggest(B, 1 << number + 40)
    assert list(search._races) == [1 << 58, 1 << 59]
    script.rates = {1: {A: 0.9}}
    decode(search, text(200), 200)
    assert len(search._losers) <= 3
