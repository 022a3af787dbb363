"""What a policy drafts: nothing where that is best, and as much as pays elsewhere.

A plain token takes a second, each further row 0.05 s, a draft pass 0.5 s and 0.025 s a row.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import pytest

from swift_backend.params import SamplingParams
from swift_backend.scheduler import Work
from swift_backend.sequence import Extent, Request, Sequence
from swift_backend.speculation.cost_model import CostModel, RowCosts
from swift_backend.speculation.draft import LAYER_SKIP, NGRAM, SIBLING, Draft
from swift_backend.speculation.draft_passes import Path, Said
from swift_backend.speculation.drafting_state import FIRST_PAUSE
from swift_backend.speculation.draw_cost import DrawCost
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.policy import Policy
from swift_backend.speculation.prices import Prices
from swift_backend.speculation.suffix_automaton import SuffixAutomaton

LAYERS = 10
HALF = LayerSet.skipping(LAYERS, range(5))
NOTHING = RowCosts((1, 2), (1e-9, 1e-9))


class Model:
    """Draft passes that say what a test wants: (favourites, confidence) of each call, the last one again and again."""

    def __init__(self, *said: tuple[tuple[int, ...], float]) -> None:
        self.said, self.groups = list(said), list[list[list[int]]]()

    def extend(self, paths: Seq[Path], layer_set: LayerSet, favourites: int, *, short: bool) -> list[Said]:
        self.groups.append([list(path.row_group().token_ids) for path in paths])
        tokens, confidence = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        heard = [Said(tokens, confidence) for _ in paths]
        for path, one in zip(paths, heard, strict=True):
            path.heard(one, layer_set.skip_mask, 0.0)
        return heard


class Odds:
    """As sure as the draft says."""

    def __init__(self, first: float, later: float) -> None:
        self._first, self._later = first, later

    def first(self, sequence: Sequence, skip_mask: int) -> float:
        return self._first

    def later(self, skip_mask: int) -> float:
        return self._later

    def sure(self, skip_mask: int, confidence: float, *, first: bool) -> float:
        return confidence


def costs(per_row: float = 0.05) -> CostModel:
    part = RowCosts((1, 2), (0.05, 0.05 + per_row / 20))
    return CostModel(LAYERS, part, part, NOTHING, NOTHING, per_key=0.0)


def policy(model: Model, odds: Odds, per_row: float = 0.05, *, siblings: bool = True) -> Policy:
    return Policy(model, Prices(costs(per_row)), odds, DrawCost(), siblings=siblings)  # type: ignore[arg-type]


def work(made: Policy, tokens: Seq[int] = (5, 6, 7), mode: str = "auto", budget: int = 8) -> Work:
    """A sequence whose latest token is to go through the model."""
    sequence = Sequence(Request("r", list(tokens[:-1]), SamplingParams(speculation=mode), print), 500, seed=0)
    sequence.append(tokens[-1])
    sequence.extent = Extent(0, 600, len(tokens) - 1)
    sequence.drafting, sequence.layer_set = made.new_state(mode), HALF
    return Work(sequence, 1, budget)


SURE = ((9, 8, 7), 0.99)


def test_a_set_that_is_often_right_drafts_while_that_pays() -> None:
    """0.95 to begin with, and each pass costs 0.5: it goes on while 0.99^k * 0.95 is worth 0.55, up to the budget."""
    model = Model(SURE)
    made = policy(model, Odds(0.95, 0.95))
    [draft] = made.draft([work(made)])
    assert draft.drafters == (LAYER_SKIP,) * 8
    assert (draft.passes, draft.skip_mask) == (8, HALF.skip_mask)


def test_a_set_whose_acceptance_is_below_its_cost_is_left_alone() -> None:
    model = Model(SURE)
    made = policy(model, Odds(0.4, 0.5))
    [draft] = made.draft([work(made)])
    assert (draft.token_ids, draft.passes) == ((), 0)
    assert model.groups == []


def test_an_unsure_token_ends_the_draft_and_its_alternatives_are_verified() -> None:
    """At 0.4 no further pass pays, but its row does, and that of the second favourite; the third one's does not."""
    model = Model(SURE, ((3, 4, 6), 0.4))
    made = policy(model, Odds(0.9, 0.9))
    [draft] = made.draft([work(made)])
    assert draft.passes == 2
    assert draft.chain == (9, 3)
    assert [draft.token_ids[i] for i, who in enumerate(draft.drafters) if who == SIBLING] == [4, 6]
    assert draft.parents[2:] == (0, 0)


def test_without_siblings_there_is_only_the_chain() -> None:
    """And nobody asks the draft passes for more than their favourite."""

    class Narrow(Model):
        def extend(self, paths: Seq[Path], layer_set: LayerSet, favourites: int, *, short: bool) -> list[Said]:
            assert favourites == 1
            return super().extend(paths, layer_set, favourites, short=short)

    made = policy(Narrow(SURE, ((3,), 0.4)), Odds(0.9, 0.9), siblings=False)
    [draft] = made.draft([work(made)])
    assert (draft.token_ids, draft.drafters) == ((9, 3), (LAYER_SKIP,) * 2)


def test_broken_logits_of_a_draft_pass_end_it() -> None:
    model = Model(SURE, ((0, 0, 0), -1.0))
    made = policy(model, Odds(0.9, 0.9))
    [draft] = made.draft([work(made)])
    assert (draft.chain, draft.passes) == ((9,), 2)


def test_what_is_found_in_the_text_costs_no_pass() -> None:
    """A long match is as good as a draft pass, and free."""
    text = [*range(20, 40), *range(20, 36)]
    model = Model(SURE)
    made = policy(model, Odds(0.7, 0.7))
    [draft] = made.draft([work(made, text, budget=3)])
    assert (draft.token_ids, draft.drafters, model.groups) == ((36, 37, 38), (NGRAM,) * 3, [])


def test_what_is_found_is_extended_by_draft_passes_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four tokens are found: the first pass goes over these, too."""
    text = [*range(20, 60), *range(20, 56)]
    model = Model(SURE, ((3, 4, 6), 0.4))
    made = policy(model, Odds(0.97, 0.97))
    one = work(made, text, budget=16)
    for _ in range(300):  # matches have held so far
        one.sequence.drafting.matches.note(40, right=True)
    monkeypatch.setattr(SuffixAutomaton, "continuation", lambda self, count: [56, 57, 58, 59])
    [draft] = made.draft([one])
    assert draft.drafters[:4] == (NGRAM,) * 4 and LAYER_SKIP in draft.drafters
    assert model.groups[0] == [[55, 56, 57, 58, 59]]
    assert model.groups[1] == [[9]]


@pytest.mark.parametrize(("mode", "drafters"), [("ngram", {NGRAM}), ("skip", {LAYER_SKIP, SIBLING})])
def test_a_request_gets_the_drafters_that_it_asks_for(mode: str, drafters: set[str]) -> None:
    model = Model(((9, 8, 7), 0.8))
    made = policy(model, Odds(0.95, 0.95))
    [draft] = made.draft([work(made, [5, 6, 7, 5, 6, 7, 5, 6], mode)])
    assert set(draft.drafters) == drafters


def test_a_trial_now_and_then_brings_draft_passes_back() -> None:
    """Nothing pays by what is known of the set, but on this text its drafts are always right."""
    model = Model(SURE)
    made = policy(model, Odds(0.35, 0.9))
    one = work(made, mode="skip")
    drafted = []
    for _ in range(8 * FIRST_PAUSE):
        [draft] = made.draft([one])
        drafted.append(draft.passes)
        committed = [*draft.chain, 1]
        made.note_round(one.sequence, draft, committed)
    assert drafted[:FIRST_PAUSE] == [0] * FIRST_PAUSE
    assert drafted[FIRST_PAUSE] == 1
    assert max(drafted[-8:]) > 1 and 0 not in drafted[-8:]


def test_no_trials_where_the_best_drafts_would_not_pay() -> None:
    """In a batch whose rows are dear."""
    model = Model(SURE)
    made = policy(model, Odds(0.5, 0.5), per_row=0.9)
    works = [work(made, mode="skip") for _ in range(4)]
    for _ in range(4 * FIRST_PAUSE):
        for one, draft in zip(works, made.draft(works), strict=True):
            made.note_round(one.sequence, draft, [1])
    assert model.groups == []


def test_in_a_batch_those_draft_for_whom_it_pays() -> None:
    """Each waits for a pass that others need; for one alone it would not pay, since the others could make tokens."""

    class ByLength(Odds):
        def first(self, sequence: Sequence, skip_mask: int) -> float:
            return 0.99 if len(sequence.tokens) == 3 else 0.05

    made = policy(Model(SURE), ByLength(0.0, 0.1), per_row=0.02, siblings=False)
    good, bad = ([work(made, range(20, 20 + n), "skip") for _ in range(3)] for n in (3, 4))
    assert [draft.passes for draft in made.draft([*good, *bad[:1]])] == [1, 1, 1, 0]
    assert [draft.passes for draft in made.draft([*good[:1], *bad])] == [0, 0, 0, 0]


def test_what_it_learns_of_a_text_decides() -> None:
    """Twenty rounds of wrong drafts: it stops, whatever the pool says."""
    model = Model(SURE)
    made = policy(model, Odds(0.9, 0.9))
    one = work(made, mode="skip")
    passes = []
    for _ in range(30):
        [draft] = made.draft([one])
        passes.append(draft.passes)
        made.note_round(one.sequence, draft, [1])
    assert passes[0] > 1 and sum(passes[-10:]) <= 1


def test_an_n_gram_that_was_wrong_is_noted_though_it_was_not_drafted() -> None:
    """What would have been proposed is compared with what came: a trial that costs nothing."""
    made = policy(Model(SURE), Odds(0.1, 0.1), per_row=5.0)
    one = work(made, [5, 6, 7, 5, 6])
    before = one.sequence.drafting.matches.chance(2)
    [draft] = made.draft([one])
    assert not draft
    made.note_round(one.sequence, draft, [99])
    assert one.sequence.drafting.matches.chance(2) < before


def test_sequences_without_a_state_or_a_budget_get_nothing() -> None:
    made = policy(Model(SURE), Odds(0.95, 0.95))
    plain, full = work(made), work(made, budget=0)
    plain.sequence.drafting = None
    assert made.draft([plain, full]) == [Draft(), Draft()]
    assert made.new_state("fixed") is None and made.new_state("off") is None


def test_a_draft_pass_that_agrees_with_what_was_found_makes_it_likelier() -> None:
    """A short match alone is doubtful; where the draft says the same, the rest of the match comes for free."""
    text = [*range(5, 16), *range(5, 10)]
    agreeing, other = Model(((10, 3, 2), 0.9), SURE), Model(((3, 2, 1), 0.5), SURE)
    for model in (agreeing, other):
        made = policy(model, Odds(0.95, 0.3))
        one = work(made, text)
        for _ in range(40):
            one.sequence.drafting.matches.note(5, right=False)
            one.sequence.drafting.matches.note(6, right=True)
        [draft] = made.draft([one])
        if model is agreeing:
            assert draft.token_ids[:3] == (10, 11, 12) and draft.drafters[:3] == (LAYER_SKIP, NGRAM, NGRAM)
        else:
            assert draft.chain == (3,) and 11 not in draft.token_ids
        assert len(model.groups) == 1


def test_finished_requests_are_remembered_only_where_the_operator_says_so() -> None:
    for tokens, expected in ((0, 0), (100, 5)):
        made = Policy(Model(SURE), Prices(costs()), Odds(0.5, 0.5), DrawCost(), tokens)  # type: ignore[arg-type]
        made.ended(work(made, [5, 6, 7, 8, 9]).sequence)
        assert len(made._store) == expected


def test_drawing_with_a_temperature_has_its_price() -> None:
    """A row whose noise takes 0.4 s must be likelier than one that is drawn greedily."""
    text = [*range(20, 30), *range(20, 23)]
    drafted = {}
    for temperature in (0.0, 1.0):
        made = policy(Model(SURE), Odds(0.1, 0.1))
        made._draw_cost.note(4.0, rows=10)
        one = work(made, text, "ngram")
        one.sequence.request = replace(
            one.sequence.request, params=SamplingParams(speculation="ngram", temperature=temperature)
        )
        [draft] = made.draft([one])
        drafted[temperature] = len(draft)
    assert drafted[0.0] > drafted[1.0]


def test_the_cost_of_drawing_is_that_of_late() -> None:
    cost = DrawCost()
    assert cost.seconds == 0.0
    cost.note(0.5, rows=0)
    assert cost.seconds == 0.0
    for _ in range(100):
        cost.note(0.2, rows=2)
    assert cost.seconds == pytest.approx(0.1)
    for _ in range(100):
        cost.note(0.2, rows=1)
    assert cost.seconds == pytest.approx(0.2, rel=0.01)
