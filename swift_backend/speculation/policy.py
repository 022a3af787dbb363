"""What is drafted in this round, for whom, and how far? Whatever brings most tokens per second; often nothing.

What counts is the time that a reader waits for a token, on average over the readers of a batch: T Σ 1/g, where a round
takes T and brings a reader g tokens. Around its values of late, a token more for a reader is worth 1/g² and a second
costs (Σ 1/g) / T, its price; for one reader alone, that is how many tokens are made in a second. So a draft pass pays
while the chance that its token counts, less the price of its row, is worth more than its time, and a drafted token is
verified while its chance is worth more than its row (Dinkelbach, 1967, for ratios of expected values). What is found in
the text costs no pass. Nothing of this changes which tokens come out.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from time import perf_counter

from swift_backend.scheduler import Work
from swift_backend.sequence import Sequence
from swift_backend.speculation.chances import RANK_PRIORS, MatchChances, RankChances, no_matches
from swift_backend.speculation.draft import NGRAM, SIBLING, Draft
from swift_backend.speculation.draft_passes import DraftPasses, Path, Said
from swift_backend.speculation.drafting_state import DraftingState
from swift_backend.speculation.draw_cost import DrawCost
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.making import Making, Offer, Step, comb
from swift_backend.speculation.ngram_store import NgramStore
from swift_backend.speculation.prices import Prices
from swift_backend.speculation.row_choice import Candidate, most_worthwhile, worth_verifying
from swift_backend.speculation.set_odds import Odds

NGRAM_MODES, LAYER_MODES = ("auto", "ngram"), ("auto", "skip")
POLICY_MODES = {*NGRAM_MODES, *LAYER_MODES}
# The drafted token and its alternatives.
FAVOURITES = 1 + len(RANK_PRIORS)
# What the next pass is worth must differ from nothing by so many tokens before draft passes begin, or stop.
HYSTERESIS = 0.02
# Chances that were chosen for being high are lower than they look, the more so the more there are to choose from: with
# 1.12 batches of 4 took 1.04 times as long as plain ones where little can be drafted, with 1.35 0.99 times.
CAUTION, CAUTION_IN_BATCH = 1.12, 1.3
# A trial is made where drafts that are as good as this would pay.
OPTIMISM = 0.92
# How often the second favourite is taken to be right where the first was not, before there is evidence.
SECOND_CHANCE = 0.35
# Tokens less likely than this are not looked at.
LEAST_CHANCE = 0.02
# Drafted tokens of one full pass, for all sequences together.
MOST_ROWS = 64
# The price of a row is the mean over so many.
ROWS_AT_ONCE = 5


class Policy:
    """Drafts for the sequences that have a DraftingState."""

    def __init__(
        self,
        passes: DraftPasses,
        prices: Prices,
        odds: Odds,
        draw_cost: DrawCost,
        stored_tokens: int = 0,
        siblings: bool = True,
    ) -> None:
        """draw_cost: of rows with a temperature. stored_tokens: of finished requests, whose n-grams are known, too.

        siblings: whether drafts may have alternatives beside their tokens.
        """
        self._passes, self._prices, self._odds, self._draw_cost = passes, prices, odds, draw_cost
        self._store = NgramStore(stored_tokens)
        self._siblings = siblings
        self._ranks = RankChances()
        self._matches = no_matches()

    def new_state(self, mode: str) -> DraftingState | None:
        """For a request with this way of speculating; None where the policy has no say in it."""
        if mode not in POLICY_MODES:
            return None
        return DraftingState(
            ngrams=mode in NGRAM_MODES,
            layers=mode in LAYER_MODES,
            matches=MatchChances(self._matches),
            store=self._store,
        )

    def draft(self, plan: Seq[Work]) -> list[Draft]:
        """See Drafter; works of sequences without a state get an empty draft."""
        started = perf_counter()
        self._prices.next_step()
        makings = [self._begin(owner, work) for owner, work in enumerate(plan) if work.sequence.drafting is not None]
        open_ones = [making for making in makings if making.work.draft_budget]
        drafts = [Draft() for _ in plan]
        if open_ones:
            step = self._step(plan, open_ones)
            seconds = self._draft_passes(open_ones, step)
            self._choose_rows(open_ones, step, drafts, seconds)
            passes = sum(making.path.seconds for making in open_ones)
            decide = (perf_counter() - started - passes) / len(open_ones)
            for making in open_ones:
                making.state.decide_seconds = decide
        return drafts

    def note_round(self, sequence: Sequence, draft: Draft, committed: Seq[int]) -> None:
        """Learn from a round that committed these tokens."""
        state: DraftingState = sequence.drafting
        for i, (proposed, token) in enumerate(zip(state.proposed, committed, strict=False)):
            state.matches.note(state.matched + i, proposed == token)
            if proposed != token:
                break
        for one in draft.guesses:
            token_there = one.outcome(committed)
            if token_there is not None:
                self._ranks.note(one.token_ids, one.confidence, token_there)
                if not one.after:
                    state.note_favourites(one.token_ids, token_there)
        if state.cost:
            state.note_speed(len(committed), state.cost)

    def ended(self, sequence: Sequence) -> None:
        """Remember the text of a request that is over."""
        if sequence.drafting is not None and sequence.drafting.ngrams:
            self._store.add(sequence.tokens)

    def _begin(self, owner: int, work: Work) -> Making:
        """What the text itself proposes."""
        state: DraftingState = work.sequence.drafting
        making = Making(owner, work, Path(work.sequence, work.draft_budget), state.tokens_a_round**-2)
        state.read(work.sequence)
        state.cost = state.decide_seconds = 0.0
        state.propose(work.draft_budget)
        reach = making.weight
        for i, token in enumerate(state.proposed):
            reach *= state.matches.chance(state.matched + i)
            if reach < LEAST_CHANCE:
                break
            making.found.append(token)
            making.found_chances.append(reach)
        return making

    def _step(self, plan: Seq[Work], makings: Seq[Making]) -> Step:
        decoding = sum(work.reaches_end for work in plan)
        rows = sum(work.num_tokens for work in plan)
        context = sum(len(making.sequence.tokens) for making in makings) / len(makings)
        full = self._prices.full(rows, decoding, context, ROWS_AT_ONCE)
        plain = full[0] if rows == decoding else self._prices.full(decoding, decoding, context, 0)[0]
        waits = sum(1 / making.state.tokens_a_round for making in makings) + decoding - len(makings)
        cost = sum(making.state.cost_of_a_round for making in makings) / len(makings)
        price = (CAUTION if decoding == 1 else CAUTION_IN_BATCH) * waits / (cost * plain)
        row = price * (full[ROWS_AT_ONCE] - full[0]) / ROWS_AT_ONCE
        return Step(rows, decoding, context, price, row, price * self._draw_cost.seconds)

    def _draft_passes(self, makings: Seq[Making], step: Step) -> float:
        """Extend the paths of those for whom that pays, as far as it does; what the passes should have taken."""
        eligible = [making for making in makings if making.state.layers and making.sequence.layer_set]
        paying: set[int] = set()
        active: list[Making] = []
        seconds = 0.0
        if eligible:
            layer_set = LayerSet.most_frequent(making.sequence.layer_set for making in eligible)
            offers = [self._offer(making, layer_set.skip_mask, step, len(eligible)) for making in eligible]
            chosen = self._worth_a_pass(offers, layer_set.skip_mask, step)
            paying = {offer.making.owner for offer in chosen}
            chosen += self._trials(offers, paying, layer_set.skip_mask, step)
            for offer in chosen:
                offer.making.take_found(offer.extends)
            active = [offer.making for offer in chosen]
        while active:
            favourites = FAVOURITES if self._siblings else 1
            said = self._passes.extend([making.path for making in active], layer_set, favourites, short=True)
            seconds += self._prices.draft(len(active), len(active), step.context, layer_set.skip_mask)
            for making, one in zip(active, said, strict=True):
                self._hear(making, one, layer_set)
            going = [making for making in active if making.owner in paying]
            active = self._going_on(going, layer_set.skip_mask, step)
        for making in makings:
            if not making.path.passes:
                making.take_found()
            making.state.note_passes(drafted=making.path.passes > 0, pays=making.owner in paying)
        return seconds

    def _offer(self, making: Making, skip_mask: int, step: Step, sharing: int) -> Offer:
        """What the next draft pass is worth to a sequence, over what was found in its text."""
        state, row = making.state, making.row(step)
        found = making.found_worth(row)
        pass_price = step.price * self._prices.draft(sharing, sharing, step.context, skip_mask) / sharing
        pass_price += making.draw(step)
        first = state.first.chance(state.expected(skip_mask, lambda: self._odds.first(making.sequence, skip_mask)))
        later = self._odds.later(skip_mask)
        second = (1 - first) * state.second.chance(SECOND_CHANCE) if self._siblings else 0.0
        reach = making.weight * first
        fresh = reach - row + max(0.0, making.weight * second - row) - found - making.draw(step)
        for _ in range(1, making.work.draft_budget):
            reach *= later
            if reach - row <= pass_price:
                break
            fresh += reach - row - pass_price
        bias = making.weight * (HYSTERESIS if state.drafting else -HYSTERESIS)
        extended, cut = self._extended(making, later, skip_mask, step)
        return Offer(making, max(fresh, extended) + bias, cut if extended > fresh else 0)

    def _extended(self, making: Making, later: float, skip_mask: int, step: Step) -> tuple[float, int]:
        """What a pass after the first tokens that were found is worth, over all of these, at best; after how many."""
        best, cut, rest, row = -1.0, 0, 0.0, making.row(step)
        alone = self._prices.draft(1, 1, step.context, skip_mask)
        for count in range(len(making.found), 0, -1):
            if count < making.work.draft_budget:
                dearer = step.price * (self._prices.draft(count + 1, 1, step.context, skip_mask) - alone)
                value = making.found_chances[count - 1] * later - row - dearer - rest - making.draw(step)
                if value > best:
                    best, cut = value, count
            rest += max(0.0, making.found_chances[count - 1] - row)
        return best, cut

    def _worth_a_pass(self, offers: Seq[Offer], skip_mask: int, step: Step) -> list[Offer]:
        """Those that bring more than a pass for them takes, together."""
        ranked = sorted(offers, key=lambda offer: -offer.gain)
        gains = (offer.gain for offer in ranked)
        return ranked[
            : most_worthwhile(gains, lambda k: step.price * self._prices.draft(k, k, step.context, skip_mask))
        ]

    def _trials(self, offers: Seq[Offer], paying: Collection[int], skip_mask: int, step: Step) -> list[Offer]:
        """Those whose drafts should be tried again though they do not seem to pay; none where they could not.

        paying: who drafts anyway, which makes a trial cheap.
        """
        due = [
            Offer(making, making.weight * OPTIMISM - row - making.found_worth(row) - making.draw(step))
            for making, row in ((offer.making, offer.making.row(step)) for offer in offers)
            if making.owner not in paying and making.state.trial_due
        ]
        if not due:
            return []
        hoped = [Offer(making, OPTIMISM, 0) for making in (offer.making for offer in offers) if making.owner in paying]
        tried = self._worth_a_pass([*hoped, *due], skip_mask, step)
        return [offer for offer in tried if offer.making.owner not in paying]

    def _going_on(self, makings: Seq[Making], skip_mask: int, step: Step) -> list[Making]:
        """Those for whom another pass pays."""
        later = self._odds.later(skip_mask)
        offers = [
            Offer(making, making.reach * later - making.row(step) - making.draw(step))
            for making in makings
            if making.path.room and not making.path.unsure
        ]
        return [offer.making for offer in self._worth_a_pass(offers, skip_mask, step)]

    def _hear(self, making: Making, said: Said, layer_set: LayerSet) -> None:
        """Take in what a pass said about a path's next token."""
        path, reach, depth = making.path, making.reach, len(making.path.tokens)
        if said.confidence < 0:
            path.unsure = True
            return
        sure = self._odds.sure(layer_set.skip_mask, said.confidence, first=depth == 0)
        ranked = enumerate(said.token_ids[1:], 1)
        others = {token: (min(self._ranks.chance(rank, said.confidence), sure), SIBLING) for rank, token in ranked}
        found = making.next_found
        agreed = found is not None and found[0] == said.token_ids[0]
        if found is not None and agreed:
            sure = 1 - (1 - sure) * (1 - found[1])
        elif found is not None:
            also, _ = others.get(found[0], (0.0, SIBLING))
            others[found[0]] = max(also, found[1] * (1 - sure)), NGRAM
        for token, (chance, drafter) in others.items() if self._siblings else ():
            making.siblings.append(Candidate(reach * chance, making.owner, depth, token, drafter, sibling=True))
        making.chances.append(reach * sure)
        path.append(said)
        if agreed:
            making.go_on_with_found()

    def _choose_rows(self, makings: Seq[Making], step: Step, drafts: list[Draft], passes: float) -> None:
        """Make drafts of what is worth a row; mutates drafts. passes: seconds of the draft passes."""
        candidates = [one for making in makings for one in making.candidates(step, LEAST_CHANCE)]
        full = self._prices.full(step.rows, step.decoding, step.context, min(MOST_ROWS, len(candidates)))
        chosen = worth_verifying(candidates, full, step.price)
        by_owner: dict[int, list[Candidate]] = {making.owner: [] for making in makings}
        for one in chosen:
            by_owner[one.owner].append(one)
        for making in makings:
            drafts[making.owner] = comb(making.path, by_owner[making.owner])
            if step.only_decoding:  # a prompt's chunk would make drafts look cheap
                making.state.cost = (full[len(chosen)] + passes) / full[0]
