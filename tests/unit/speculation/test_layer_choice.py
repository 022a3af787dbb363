"""Which layers a prompt's draft skips: read off its own rows of each pass, decided when it ends."""

from __future__ import annotations

import pytest
import torch

from swift_backend.params import SamplingParams
from swift_backend.sequence import Request, Sequence
from swift_backend.speculation.cost_model import CostModel, RowCosts
from swift_backend.speculation.draft import Draft, Guess
from swift_backend.speculation.knapsack import Knapsack
from swift_backend.speculation.layer_choice import LOOK_EVERY, LOOK_RATE, POOLED, Guide, LayerChooser, Watch
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.pool import SHIPPED, Pool
from swift_backend.speculation.search import Race
from swift_backend.speculation.similarity import Profile

GUIDE = Guide(ratio=0.34, protected=1)  # two of six layers
PART = RowCosts((1, 8), (0.01, 0.012))
COSTS = CostModel(6, PART, PART, PART, PART, per_key=0.0)


class Search:
    """A search that finds what a test says."""

    def __init__(self) -> None:
        self.incumbent: int | None = None
        self.better: Race | None = None
        self.finds: list[int] = []
        self.suggested: list[int] = []
        self.against: list[int | None] = []
        self.forgotten: list[Sequence] = []

    @property
    def layer_set(self) -> LayerSet | None:
        return None if self.incumbent is None else LayerSet(6, self.incumbent)

    def suggest(self, skip_mask: int, incumbent: int | None = None) -> None:
        self.suggested.append(skip_mask)
        self.against.append(incumbent)

    def begin_with(self, skip_mask: int) -> None:
        self.incumbent = skip_mask if self.incumbent is None else self.incumbent

    def forget(self, sequence: Sequence) -> None:
        self.forgotten.append(sequence)

    def round_done(self, sequence: Sequence, seconds: float) -> float:
        ours = 0 if sequence.layer_set is None else sequence.layer_set.skip_mask
        self.better = Race(self.finds.pop(0), ours, tried=50, right=40, incumbent_right=20) if self.finds else None
        return 0.02 * seconds


def chooser(pool: Pool | None = None) -> LayerChooser:
    made = Pool(6) if pool is None else pool
    return LayerChooser(GUIDE, COSTS, Knapsack(COSTS, 1, 5), made, Search(), 5)  # type: ignore[arg-type]


CHOOSER = chooser()


def sequence(speculation: str = "fixed") -> Sequence:
    return Sequence(Request("r", [5] * 9, SamplingParams(speculation=speculation), print), 50, seed=0)


def see(watch: Watch, *rows: list[float]) -> None:
    """A pass in which each row had these similarities, one for each layer: its state turns by as much."""
    turned = torch.arccos(torch.tensor(rows)).cumsum(dim=1)
    angles = torch.cat((torch.zeros(len(rows), 1), turned), dim=1)
    states = torch.stack((angles.cos(), angles.sin()), dim=-1)  # [rows, layers + 1, 2]
    for layer in range(len(rows[0])):
        watch.seen.observe(2 * layer, states[:, layer], states[:, layer])
        watch.seen.observe(2 * layer + 1, states[:, layer], states[:, layer + 1])


def prefill(works: list[tuple[Sequence, int, bool]], *rows: list[float]) -> None:
    """One pass with (sequence, rows, whether its prompt ends here) of each."""
    watch = CHOOSER.watch([(sequence, count) for sequence, count, _ in works])
    assert watch
    see(watch, *rows)
    CHOOSER.note(watch, [sequence for sequence, _, ends in works if ends])


def layers_of(one: Sequence) -> torch.Tensor:
    assert one.profile is not None
    return Profile(one.profile).layers


LOW, HIGH = [0.5] * 6, [0.9] * 6


def test_the_ratio_is_the_guides_unless_one_is_given() -> None:
    assert Guide.for_model(32, None, 2) == Guide(14 / 32, 2)
    assert Guide.for_model(32, 0.0, 2) == Guide(0.0, 2)
    assert Guide.for_model(32, 0.3, 4) == Guide(0.3, 4)


@pytest.mark.parametrize(
    ("speculation", "decided", "watched"),
    [("fixed", False, True), ("auto", False, True), ("off", False, False), ("fixed", True, False)],
)
def test_a_pass_is_watched_while_somebody_needs_a_layer_set(speculation: str, decided: bool, watched: bool) -> None:
    """Watching costs time: not for requests that never draft, and not for those that know already."""
    done, one = sequence(), sequence(speculation)
    done.layer_set = LayerSet(6)
    one.layer_set = LayerSet(6) if decided else None
    assert (CHOOSER.watch([(done, 1), (one, 1)]) is not None) == watched
    assert CHOOSER.watch([]) is None


def test_each_prompt_gets_the_layers_of_its_own_rows() -> None:
    """Between them a decoding sequence with its draft, which is left as it is."""
    first, decoding, second = sequence(), sequence(), sequence()
    decoding.layer_set = LayerSet.skipping(6, [1])
    rows = [
        [0.1, 0.8, 0.2, 0.9, 0.1, 1.0],
        [0.1, 0.8, 0.2, 0.9, 0.1, 1.0],
        *[[1.0] * 6] * 3,
        [1.0, 0.1, 0.7, 0.1, 0.8, 0.1],
    ]
    prefill([(first, 2, True), (decoding, 3, True), (second, 1, True)], *rows)
    assert first.layer_set == LayerSet.skipping(6, [1, 3])
    assert second.layer_set == LayerSet.skipping(6, [2, 4])
    assert decoding.layer_set == LayerSet.skipping(6, [1])
    assert decoding.profile is None
    assert first.profile_tokens == 2
    torch.testing.assert_close(layers_of(first), torch.tensor([0.1, 0.8, 0.2, 0.9, 0.1, 1.0]))


def test_a_chunked_prompt_decides_at_its_end_by_all_its_chunks() -> None:
    """Three rows speak for layers 1 and 2, one row, the last, for 3 and 4."""
    one = sequence()
    prefill([(one, 3, False)], *[[0.0, 0.9, 0.9, 0.6, 0.6, 0.0]] * 3)
    assert one.layer_set is None
    prefill([(one, 1, True)], [0.0, 0.6, 0.6, 0.9, 0.9, 0.0])
    assert one.layer_set == LayerSet.skipping(6, [1, 2])
    torch.testing.assert_close(layers_of(one), torch.tensor([0.0, 0.825, 0.825, 0.675, 0.675, 0.0]))


def test_a_prompt_that_begins_in_the_cache_counts_that_part() -> None:
    """Eight cached tokens outweigh the one that is computed; without them it would decide alone."""
    reusing, fresh = sequence(), sequence()
    reusing.begin_with(8, torch.tensor([0.5] * 12 + [0.0, 0.9, 0.9, 0.6, 0.6, 0.0]))
    row = [0.0, 0.6, 0.6, 0.9, 0.9, 0.0]
    prefill([(reusing, 1, True), (fresh, 1, True)], row, row)
    assert reusing.layer_set == LayerSet.skipping(6, [1, 2])
    assert fresh.layer_set == LayerSet.skipping(6, [3, 4])
    assert (reusing.profile_tokens, reusing.reused_tokens) == (9, 8)


def test_requests_that_never_draft_are_not_measured() -> None:
    one, off = sequence(), sequence("off")
    prefill([(off, 1, True), (one, 1, True)], HIGH, LOW)
    assert off.layer_set is None and off.profile is None
    torch.testing.assert_close(layers_of(one), torch.tensor(LOW))


FLAT = torch.cat((torch.tensor([0.5, 0.9] * 6), torch.full((6,), 0.5)))  # attentions change the states, MLPs do not


def ready(speculation: str, profile: torch.Tensor = FLAT) -> Sequence:
    """A sequence whose prompt was looked at."""
    made = sequence(speculation)
    made.note_profile(profile, 9)
    return made


def test_similarity_takes_the_sublayers_that_change_least() -> None:
    """As many as the guide's two layers have: four MLPs between the ends."""
    assert chooser().choose(ready("similarity")) == LayerSet(6, 0b10_1010_1000)
    assert chooser().choose(ready("fixed")) == LayerSet.skipping(6, [1, 2])


def test_static_is_the_best_of_what_was_shipped() -> None:
    pool = Pool(6)
    assert chooser(pool).choose(ready("static")) is None
    pool.add(0b1100, SHIPPED), pool.add(0b111100, SHIPPED), pool.add(0b11110000, "search")
    for mask, right in ((0b1100, True), (0b111100, False), (0b11110000, True)):
        for _ in range(50):
            pool.note(mask, first=True, confidence=0.9, accepted=right)
    assert chooser(pool).choose(ready("static")) == LayerSet(6, 0b1100)


def test_a_pooled_request_takes_what_did_well_on_prompts_like_its_own() -> None:
    """Two sets of equal cost; each was right on one kind of prompt."""
    pool, other = Pool(6), FLAT.flip(0)
    pool.add(0b1100, "search"), pool.add(0b110000, "search")
    for profile, mask in ((FLAT, 0b1100), (other, 0b110000)):
        for _ in range(5):
            pool.remember(profile, mask, 100, 99)
            pool.remember(profile, 0b111100 ^ mask, 100, 10)
    made = chooser(pool)
    assert made.choose(ready("auto", FLAT)) == LayerSet(6, 0b1100)
    assert made.choose(ready("skip", other)) == LayerSet(6, 0b110000)


def test_a_first_request_gets_the_guides_set_and_a_knapsack_has_to_win_a_race() -> None:
    """That sublayers lose little by themselves says little of all of them together."""
    made = chooser()
    given = made.choose(ready("auto"))
    assert given == GUIDE.layers(Profile(FLAT))
    assert [(arm.skip_mask, arm.origin) for arm in made.pool] == [(given.skip_mask, "similarity")]
    assert made.search.incumbent == given.skip_mask
    assert len(made.search.suggested) == 1 and made.search.suggested[0] != given.skip_mask  # type: ignore[attr-defined]
    assert made.search.against == [given.skip_mask]  # type: ignore[attr-defined]


def test_a_search_goes_on_from_what_did_well_on_prompts_like_its_own() -> None:
    """And not from where it was with another text."""
    pool, other = Pool(6), FLAT.flip(0)
    pool.add(0b1100, SHIPPED), pool.add(0b110000, SHIPPED)
    for profile, mask in ((FLAT, 0b1100), (other, 0b110000)):
        pool.remember(profile, mask, 100, 99)
        pool.remember(profile, 0b111100 ^ mask, 100, 10)
    made = chooser(pool)
    found = [made.choose(ready("search", profile)) for profile in (FLAT, other, FLAT)]
    assert found == [LayerSet(6, 0b1100), LayerSet(6, 0b110000), LayerSet(6, 0b1100)]


def test_a_search_begins_with_the_best_that_is_known() -> None:
    pool = Pool(6)
    pool.add(0b1100, SHIPPED), pool.add(0b111100, "search")
    for mask, right in ((0b1100, True), (0b111100, False)):
        for _ in range(50):
            pool.note(mask, first=True, confidence=0.9, accepted=right)
    assert chooser(pool).choose(ready("search")) == LayerSet(6, 0b1100)


@pytest.mark.parametrize("speculation", ["search", "skip", "auto"])
def test_what_the_search_finds_is_used_from_the_next_round_on(speculation: str) -> None:
    made = chooser()
    one = ready(speculation)
    made._give(one, made.choose(one))
    assert one.layer_set == GUIDE.layers(Profile(FLAT))
    made.search.finds = [0b1100]  # type: ignore[attr-defined]
    assert made.round_done(one, 1.0) == 0.02
    assert one.layer_set == LayerSet(6, 0b1100) and one.search_seconds == 0.02
    assert (0b1100, "search") in [(arm.skip_mask, arm.origin) for arm in made.pool]
    head = COSTS.short_head if speculation in POOLED else 1.0
    assert one.draft_cost_ratio == COSTS.draft_ratio(LayerSet(6, 0b1100), 9, head)
    assert made.round_done(one, 1.0) == 0.02 and one.layer_set == LayerSet(6, 0b1100)
    again, other = ready(speculation), ready(speculation, FLAT.flip(0))
    assert made.choose(again) == LayerSet(6, 0b1100), "it is known for prompts of this kind"
    assert made.pool.expected_alpha(0b1100, FLAT) > made.pool.expected_alpha(0b1100, other.profile)  # type: ignore


@pytest.mark.parametrize(("rounds", "looked"), [(LOOK_EVERY - 2, 0), (LOOK_EVERY - 1, 1), (LOOK_EVERY, 0)])
def test_now_and_then_a_text_is_looked_at_while_it_is_verified(rounds: int, looked: int) -> None:
    """Only the row of a token that stands; what changes the states least there is to be tried."""
    made, one = chooser(), ready("auto", torch.cat((torch.full((12,), 0.9), torch.full((6,), 0.9))))
    made._give(one, LayerSet(6, 0b1100))
    made.search.begin_with(0b1100)
    one.rounds = rounds
    watch = made.watch([(one, 3)])
    assert (watch is not None) == looked
    if watch is not None:
        see(watch, *[[0.5, 0.1, 0.99, 0.99, 0.1, 0.5]] * 3)
        assert [count for _, count in watch.rows] == [1]
        made.note(watch, [one])
        assert one.layer_set == LayerSet(6, 0b1100) and one.profile_tokens == 9
        [suggested] = made.search.suggested  # type: ignore[attr-defined]
        assert made.search.against == [0b1100]  # type: ignore[attr-defined]
        assert suggested >> 5 & 1 and suggested >> 7 & 1 and not suggested >> 3 & 1
        assert one.recent_profile is not None
        torch.testing.assert_close(Profile(one.recent_profile).layers[1], torch.tensor(0.9 + LOOK_RATE * (0.1 - 0.9)))


@pytest.mark.parametrize("speculation", ["fixed", "similarity", "static", "off", "ngram"])
def test_who_tries_no_other_sets_is_not_looked_at(speculation: str) -> None:
    one = ready(speculation)
    one.layer_set, one.rounds = LayerSet(6, 0b1100), LOOK_EVERY - 1
    assert chooser().watch([(one, 3)]) is None


@pytest.mark.parametrize("speculation", ["fixed", "similarity", "static"])
def test_who_follows_a_rule_searches_nothing(speculation: str) -> None:
    made = chooser()
    assert made.round_done(ready(speculation), 1.0) == 0.0


def test_the_pool_learns_up_to_the_first_token_that_was_wrong() -> None:
    """The tokens after it never had a chance."""
    made, one = chooser(), ready("auto")
    made._give(one, made.choose(one))
    assert one.layer_set is not None
    mask = one.layer_set.skip_mask
    sure = {(): 0.9, (1,): 0.7, (1, 2): 0.6, (1, 2, 3): 0.99}
    guesses = tuple(Guess(after, confidence, (len(after) + 1,)) for after, confidence in sure.items())
    made.note_round(one, Draft((1, 2, 3, 4), skip_mask=mask, guesses=guesses), committed=[1, 9])
    arm = made.pool.arm(mask)
    assert arm is not None
    assert (sum(arm.first.drafted), sum(arm.first.accepted)) == (pytest.approx(1, abs=0.01), pytest.approx(1, abs=0.01))
    assert (sum(arm.later.drafted), sum(arm.later.accepted)) == (1, 0)


@pytest.mark.parametrize(("drafted_with", "remembered"), [(None, 1), (0b1, 0)])
def test_a_request_is_remembered_if_its_drafts_were_its_sets(drafted_with: int | None, remembered: int) -> None:
    """In a batch drafts may be made with another set."""
    made, one = chooser(), ready("auto")
    made._give(one, made.choose(one))
    assert one.layer_set is not None
    mask = one.layer_set.skip_mask if drafted_with is None else drafted_with
    guesses = (Guess((), 0.9, (1,)), Guess((1,), 0.9, (2,)))
    made.note_round(one, Draft((1, 2), skip_mask=mask, guesses=guesses), committed=[1, 2, 3])
    made.ended(one)
    assert len(made.pool._records) == remembered
    assert made.search.forgotten == [one]  # type: ignore[attr-defined]
