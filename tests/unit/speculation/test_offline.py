"""Exchanges on landscapes whose best set is known, trellises by costs, and how a set's speed is reckoned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from swift_backend.runner import Runner
from swift_backend.speculation import corpus as module
from swift_backend.speculation.corpus import Corpus, Text
from swift_backend.speculation.cost_model import CostModel, RowCosts
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.matchness import Trial
from swift_backend.speculation.offline import OfflineSearch, Scored
from swift_backend.speculation.similarity import Profile

LAYERS = 6
# Verifying a draft costs next to nothing: what counts is how much a draft pass leaves out, and how often it is right.
PART = RowCosts((1, 101), (0.001, 0.00101))
COSTS = CostModel(LAYERS, PART, PART, PART, PART, per_key=0.0)
EVEN = torch.full((3 * LAYERS,), 0.9)


def mask(*sublayers: int) -> int:
    return sum(1 << one for one in sublayers)


def skipped(scored: Scored) -> set[int]:
    return skipped_by(scored.layer_set.skip_mask)


def skipped_by(skip_mask: int) -> set[int]:
    return {one for one in range(2 * LAYERS) if skip_mask >> one & 1}


def text(profile: torch.Tensor = EVEN, token: int = 5) -> Text:
    """An answer of 40 tokens; of tokens 9 no draft is ever right."""
    return Text("any", [token] * 61, first=20, start=0, profile=Profile(profile))


Landscape = Callable[[int], float]  # of a mask: how many of ten positions are wrong
Tried = list[list[int]]
Make = Callable[..., tuple[OfflineSearch, Tried]]


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Make:
    """search(landscape, texts) is one over texts on which masks do as the landscape says, and what it tries."""

    def make(
        wrong: Landscape, texts: Iterable[Text] = (text(),), costs: CostModel = COSTS, **options: Any
    ) -> tuple[OfflineSearch, Tried]:
        tried: Tried = []

        def try_sets(runner: Any, start: int, tokens: list[int], positions: range, skips: list[int]) -> Trial:
            tried.append(list(skips))
            rows = [[tokens[0] == 5 and one % 10 >= wrong(skip) for one in positions] for skip in skips]
            return Trial(torch.tensor(rows), torch.full((len(skips), len(positions)), 0.9))

        monkeypatch.setattr(module, "try_sets", try_sets)
        corpus = Corpus(cast(Runner, None), list(texts))
        return OfflineSearch(corpus, costs, **{"most_draft_tokens": 5, "positions": 40, **options}), tried

    return make


def harmless(*sublayers: int) -> Landscape:
    """Where leaving out any other sublayer makes three more positions of ten wrong."""
    return lambda skip: 3 * (skip & ~mask(*sublayers)).bit_count()


def test_all_texts_speak(search: Make) -> None:
    """Of two texts, one goes well and on the other every draft is wrong; all of them are taken by default."""
    easy, hard = text(), text(token=9)
    made, _ = search(harmless(4), [easy, hard])
    [well], [badly], [both] = (made.score([mask(4)], 40, some) for some in ([easy], [hard], None))
    assert (well.played.alpha, badly.played.alpha) == (1.0, 0.0)
    assert (well.played.tokens, badly.played.tokens, both.played.tokens) == (40, 40, 80)
    assert 0 < both.played.alpha < 1 and well.speed_up > both.speed_up > badly.speed_up


def test_only_the_most_similar_sublayers_are_tried(search: Make) -> None:
    """What changes the states least for what it costs, beside one that was put back and in its place; texts count
    alike.
    """
    one, other = EVEN.clone(), EVEN.clone()
    one[[3, 6]], other[[6, 9]] = 0.99, 0.98
    texts = [text(one), text(other)]
    made, tried = search(harmless(), texts, width=3)
    made.exchange(made.score([mask(2)], 40)[0], texts)
    assert tried[-1] == tried[-2] == [mask(2), mask(6), mask(3), mask(9), mask(2, 6), mask(2, 3), mask(2, 9)]


def test_dear_sublayers_go_first(search: Make) -> None:
    """All change the states alike, and an MLP takes three times as long."""
    dear = RowCosts((1, 101), (0.003, 0.00303))
    made, tried = search(harmless(), costs=replace(COSTS, mlp=dear), width=4)
    made.exchange(made.score([mask(2)], 40)[0], [text()])
    assert tried[-1] == [mask(2), *(mask(one) for one in (3, 5, 7, 9)), *(mask(2, one) for one in (3, 5, 7, 9))]


@pytest.mark.parametrize(("most_skipped", "protected", "most"), [(0.25, 1, 3), (0.7, 2, 4), (0.7, 0, 8), (1.0, 0, 12)])
def test_a_trellis_leaves_out_so_many_and_spares_the_ends(
    search: Make, monkeypatch: pytest.MonkeyPatch, most_skipped: float, protected: int, most: int
) -> None:
    """Of a model whose sublayers do nothing; an MLP takes three times as long as an attention."""

    class Idle:
        embedded = torch.ones(2, 3)

        def after(self, index: int, states: list[torch.Tensor]) -> list[torch.Tensor]:
            return states

    monkeypatch.setattr(Corpus, "shadows", lambda self, most, texts: [Idle() for _ in texts])
    dear = RowCosts((1, 101), (0.003, 0.00303))
    made, _ = search(harmless(), costs=replace(COSTS, mlp=dear), protected=protected)
    trellis = made.trellis([text(), text()], most_skipped)
    while not trellis.done:
        trellis.step()
    spared = {*range(2 * protected), *range(2 * (LAYERS - protected), 2 * LAYERS)}
    left_out = [skipped_by(one) for one in trellis.masks]
    assert max(map(len, left_out)) == most and not spared & set().union(*left_out)
    ratios = [made.score([one], 40)[0].draft_ratio for one in trellis.masks]
    assert ratios == sorted(ratios, reverse=True)


def in_the_way(skip: int) -> float:
    """4 does no harm alone, but three of ten with any of 6, 7 and 8, which do none together."""
    together = 3 if skip & mask(4) and skip & mask(6, 7, 8) else 0
    return together + 3 * (skip & ~mask(4, 6, 7, 8)).bit_count()


def test_an_exchange_puts_back_what_is_in_the_way(search: Make) -> None:
    made, _ = search(in_the_way)
    start = made.score([mask(4, 6, 7)], 40)[0]
    better = made.exchange(start, [text()])
    assert skipped(better) == {6, 7, 8} and better.speed_up > start.speed_up
    assert made.exchange(better, [text()]) == better


@pytest.mark.parametrize("width", [10, 1])
def test_exchanging_stops_where_nothing_helps(search: Make, width: int) -> None:
    """Also where what was put back is not among those that may go next."""
    made, _ = search(harmless(3, 4), width=width)
    start = made.score([mask(3, 4)], 40)[0]
    assert made.exchange(start, [text()]) == start


def test_exchanging_never_ends_with_nothing_left_out(search: Make) -> None:
    """Where every set loses, the whole model would draft best, which is no draft."""
    made, _ = search(lambda skip: 10 if skip else 0)
    start = made.score([mask(5)], 40)[0]
    assert len(skipped(made.exchange(start, [text()]))) >= 1


def test_costs_follow_the_model(search: Make) -> None:
    """14 ms a plain token, of which 4 sublayers save 4; three rows take 1.2 times as long."""
    part = RowCosts((1, 5), (0.001, 0.0014))
    made, _ = search(lambda skip: 0, costs=CostModel(LAYERS, part, part, part, part, 0.0), most_draft_tokens=2)
    [scored] = made.score([mask(2, 3, 4, 5)], 40)
    assert scored.draft_ratio == pytest.approx(10 / 14)
    # Always right: 13 rounds of two drafted tokens each and their bonus, then the last position alone.
    assert (scored.length, scored.threshold, scored.played.alpha) == (2, 0.0, 1.0)
    assert (scored.played.tokens, scored.played.rounds) == (40, 14)
    assert scored.speed_up == pytest.approx(40 / (13 * (2 * 10 / 14 + 1.2) + 1))


def test_context_makes_attentions_dearer(search: Make) -> None:
    """61 slots at 0.1 ms: 7.1 ms an attention, so a plain token takes 6 · 7.1 + 6 + 2 ms."""
    made, _ = search(lambda skip: 0, costs=replace(COSTS, per_key=0.0001))
    attention, mlp = made.score([mask(2, 4), mask(3, 5)], 40)
    plain = 6 * 7.1 + 6 + 2
    assert attention.draft_ratio == pytest.approx((plain - 2 * 7.1) / plain)
    assert mlp.draft_ratio == pytest.approx((plain - 2) / plain)
    assert attention.layer_set == LayerSet(LAYERS, mask(2, 4))


def test_where_attention_and_mlp_are_one_only_attentions_go(search: Make) -> None:
    """In exchanges as in the trellis; the share is of such sublayers."""
    offline, tried = search(harmless(*range(12)), parallel=True)
    [best] = offline.score([mask(2)], 40)
    offline.exchange(best, [text()])
    assert {one for masks in tried for skip in masks for one in range(12) if skip >> one & 1} == {2, 4, 6, 8}
