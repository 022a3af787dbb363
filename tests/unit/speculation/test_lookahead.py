"""Lookahead's window and its n-grams, against a "model" that is a rule."""

from __future__ import annotations

from swift_backend.params import SamplingParams
from swift_backend.scheduler import Work
from swift_backend.sequence import Request, Sequence
from swift_backend.speculation.draft import Draft
from swift_backend.speculation.lookahead import LEVELS, MOST_KNOWN, LookaheadDrafter, Window, branches


def following(token: int) -> int:
    """A model for which only the latest token counts."""
    return (3 * token + 1) % 17


def sequence(tokens: list[int], seed: int = 0) -> Sequence:
    params = SamplingParams(speculation="lookahead")
    return Sequence(Request("r", tokens, params, print), 500, seed)


def drafted(one: Sequence, budget: int) -> Draft:
    [draft] = LookaheadDrafter().draft([Work(one, 1, budget)])
    return draft


def a_round(one: Sequence, budget: int = 15) -> Draft:
    """Draft, and tell the window what the model says after each of its rows."""
    draft = drafted(one, budget)
    one.append(following(one.tokens[-1]))
    one.lookahead.note([following(token) for token in draft.token_ids[draft.proposed :]])
    return draft


def test_the_window_is_a_tree_of_guesses_and_what_the_model_made_of_them() -> None:
    window = Window([[5, 6, 7]])
    assert (window.rows, window.parents) == ([5, 6, 7], [-1, 0, 1])
    window.note([following(token) for token in (5, 6, 7)])
    assert (window.rows, window.parents) == ([5, 6, 7, 16, 2, 5], [-1, 0, 1, 0, 1, 2])
    window.note([0, 0, 0, following(16), following(2), following(5)])
    assert window.levels == [[16, 2, 5], [15, 7, 16]]  # the next places
    assert window.continuations(6, 3) == [(2, 7)] and window.continuations(1, 3) == []


def test_what_was_not_in_the_pass_says_nothing() -> None:
    window = Window([[5, 6]])
    window.note(())
    assert window == Window([[5, 6]])


def test_the_latest_n_grams_come_first_and_the_oldest_are_forgotten() -> None:
    window = Window([[1]])
    for token in range(2, MOST_KNOWN + 4):
        window.levels = [[1], [token]]
        window.note([0, token + 1])
    known = window.continuations(1, 99)
    assert len(known) == MOST_KNOWN and known[:2] == [(19, 20), (18, 19)]
    window.levels = [[1], [18]]
    window.note([0, 19])
    assert window.continuations(1, 2) == [(18, 19), (19, 20)]  # once each


def test_branches_share_their_beginnings() -> None:
    tokens, parents = branches([(4, 5), (4, 6), (7, 8), (9, 9)], 5)
    assert tokens == [4, 5, 6, 7, 8] and parents == [-1, 0, 0, -1, 3]
    assert branches([(4, 5)], 1) == ([], [])
    assert branches([], 4) == ([], [])


def test_a_draft_is_what_is_known_and_the_window() -> None:
    """Only what is known is proposed; as soon as the trajectories are long enough, it comes true."""
    one = sequence([3, 5, 6, 11])
    first = a_round(one)
    assert first.proposed == 0 and first.chain_length == 0 and first.window == 3
    right = 0
    for _ in range(12):
        draft = a_round(one)
        assert draft.window == 3 * LEVELS and len(draft) <= 15
        committed, node = [one.tokens[-1]], -1
        while len(committed) < 3:
            committed.append(following(committed[-1]))
        for i in range(draft.proposed):
            if draft.parents[i] == node and draft.token_ids[i] == committed[len(draft.before(node))]:
                node = i
        right += len(draft.before(node))
    assert right > 0


def test_the_window_gives_way_to_what_is_known() -> None:
    """At the end of an answer there is no room for both; tokens beyond the end would be of no use."""
    one = sequence([3, 5, 6, 11])
    for _ in range(8):
        a_round(one)
    known = next(iter(one.lookahead.ngrams))
    one.append(known)
    draft = drafted(one, 2)
    assert draft.window == 0 and len(draft) == 2
    before = list(one.lookahead.levels)
    one.lookahead.note([])
    assert one.lookahead.levels == before
    assert drafted(one, 0) == Draft()
    assert len(drafted(one, 1)) == 0  # n-grams have two more tokens


def test_the_same_seed_begins_with_the_same_guesses() -> None:
    first, same, other = (Window.begun(sequence(list(range(50)), seed), 6) for seed in (1, 1, 2))
    assert first == same != other


def test_rows_of_the_window_are_neither_counted_nor_part_of_a_chain() -> None:
    draft = Draft((1, 2, 3, 4), (-1, 0, -1, 2), ("lookahead",) * 4, window=2)
    assert (draft.proposed, draft.chain) == (2, (1, 2))
    one = draft.round([0], 2, 0.1)
    assert one.drafted == ("lookahead",) * 2 and one.origins == ("lookahead", "verified") and one.chain == 2
    assert Draft((1, 2), (-1, 0), ("lookahead",) * 2, window=2).round([], 1, 0.1).plain
