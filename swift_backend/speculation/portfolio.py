"""Which few layer sets serve all kinds of text? Chosen one after another, by the time that each still saves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq

# A further set must save this share of the time, or it is one more to confuse with the others.
LEAST_GAIN = 0.003


def portfolio(speed_ups: Mapping[int, Seq[float]], first: int, most: int) -> list[int]:
    """The masks of up to `most` sets, beginning with `first`.

    speed_ups: of each mask its tokens per second over plain decoding for each kind of text, positive. Each kind is
    taken to be served by the fastest of the sets, and all kinds to be as frequent. Greedy, which is within 1 − 1/e of
    the best choice, since what a set saves can only become less by others (Nemhauser et al., 1978).
    """
    chosen, fastest = [first], list(speed_ups[first])
    while len(chosen) < most:
        saved = {mask: _time(fastest) - _time(map(max, fastest, speeds)) for mask, speeds in speed_ups.items()}
        best = max(saved, key=lambda mask: saved[mask])
        if saved[best] < LEAST_GAIN * _time(fastest):
            break
        chosen.append(best)
        fastest = list(map(max, fastest, speed_ups[best]))
    return chosen


def _time(speed_ups: Iterable[float]) -> float:
    return sum(1 / one for one in speed_ups)
