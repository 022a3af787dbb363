"""Who is let in, and who waits."""

from __future__ import annotations

import torch

from swift_backend.kv_cache import KVCache
from swift_backend.lobby import Lobby
from swift_backend.params import SamplingParams
from swift_backend.prefix_cache import PrefixCache
from swift_backend.sequence import Extent, Request, Sequence


def cache(capacity: int) -> KVCache:
    return KVCache(1, capacity, kv_heads=1, head_dim=1, dtype=torch.float32, device=torch.device("cpu"))


def sequence(name: str, num_tokens: int) -> Sequence:
    """One that needs so many slots."""
    request = Request(name, [7], SamplingParams(), print)
    return Sequence(request, num_tokens - 1, seed=0)


def names(sequences: list[Sequence] | Lobby) -> str:
    return "".join(one.request.request_id for one in sequences)


def filled(kv: KVCache, *needs: int) -> Lobby:
    lobby = Lobby(PrefixCache(kv, enabled=False))
    for name, need in zip("abcdef", needs, strict=False):
        lobby.add(sequence(name, need))
    return lobby


def test_they_enter_in_the_order_in_which_they_came() -> None:
    lobby, running = filled(cache(64), 16, 32, 16), list[Sequence]()
    lobby.admit(running, max_running=9)
    assert (names(running), len(lobby)) == ("abc", 0)
    assert [one.extent for one in running] == [Extent(0, 16), Extent(16, 32), Extent(48, 16)]


def test_the_first_in_line_is_not_overtaken_by_one_that_would_fit() -> None:
    kv = cache(64)
    lobby, running = filled(kv, 32, 48, 16), list[Sequence]()
    lobby.admit(running, max_running=9)
    assert (names(running), names(lobby)) == ("a", "bc")
    assert running[0].extent
    kv.release(running.pop().extent)  # type: ignore[arg-type]
    lobby.admit(running, max_running=9)
    assert (names(running), names(lobby)) == ("bc", "")


def test_there_are_no_more_places_than_max_running() -> None:
    kv = cache(64)
    lobby, running = filled(kv, 16, 16, 16), [sequence("x", 1)]
    lobby.admit(running, max_running=2)
    assert (names(running), names(lobby), kv.tokens_used) == ("xa", "bc", 16)
    lobby.admit(running, max_running=2)
    assert (names(running), names(lobby), kv.tokens_used) == ("xa", "bc", 16)


def test_one_that_has_ended_gives_its_turn_to_the_next() -> None:
    lobby, running = filled(cache(16), 16, 16, 16), list[Sequence]()
    first, second, _ = lobby
    lobby.remove(second)
    lobby.remove(first)
    lobby.admit(running, max_running=9)
    assert (names(running), names(lobby)) == ("c", "")
