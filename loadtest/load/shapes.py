"""How many users are there at a time? Pure functions of the time since the test began."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

STEPS = 4
# Of the test, when a spike begins and ends.
SPIKE = (0.4, 0.6)
# Outside a spike there are so many of its users.
CALM = 0.25
# A soak comes and goes in waves, down to this share of its users.
WAVES, LOW_TIDE = 6, 0.5


@dataclass(frozen=True, slots=True)
class Shape:
    """A course of the number of users. users_at: (share of the time that is over, most users) → users."""

    name: str
    about: str
    users_at: Callable[[float, int], int]


def _constant(over: float, most: int) -> int:
    return most


def _steps(over: float, most: int) -> int:
    return max(1, math.ceil(most * (math.floor(over * STEPS) + 1) / STEPS))


def _spike(over: float, most: int) -> int:
    return most if SPIKE[0] <= over < SPIKE[1] else max(1, round(CALM * most))


def _soak(over: float, most: int) -> int:
    wave = (1 - math.cos(2 * math.pi * WAVES * over)) / 2
    return max(1, round(most * (LOW_TIDE + (1 - LOW_TIDE) * wave)))


SHAPES = {
    one.name: one
    for one in (
        Shape("constant", "all users from the beginning", _constant),
        Shape("steps", f"{STEPS} steps up to all users", _steps),
        Shape("spike", "a quarter of the users, and for a fifth of the time all of them", _spike),
        Shape("soak", f"{WAVES} waves between half of the users and all of them", _soak),
    )
}


def users_at(name: str, seconds: float, duration: float | None, most: int) -> int | None:
    """How many users a test of this shape has then; None when it is over. Without a duration it stays as it begins."""
    if duration is None:
        return SHAPES[name].users_at(0.0, most)
    return None if seconds >= duration else SHAPES[name].users_at(seconds / duration, most)
