"""Named random numbers: a number is a function of (seed, position, purpose, token id), and of nothing else."""

from __future__ import annotations

import enum

import torch

MASK64 = 2**64 - 1


class Purpose(enum.IntEnum):
    """What a random number is for; different purposes at one position are independent."""

    TOKEN = 1
    DRAFT = 2
    ACCEPT = 3
    RECOVER = 4


def noise_key(seed: int, position: int, purpose: Purpose) -> int:
    """The name of a draw's numbers, as a signed 64-bit integer."""
    return _signed(_mix(_mix(_mix(seed) ^ position) ^ purpose))


def bits(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Random numbers of 52 bits, int64, for keys and token ids, int64 of shapes that broadcast.

    splitmix64's finaliser (Steele et al., 2014) in int64 arithmetic, so every device agrees.
    """
    x = ids * _signed(0x9E3779B97F4A7C15) + keys
    x = x.bitwise_xor_(_shift(x, 30)).mul_(_signed(0xBF58476D1CE4E5B9))
    x = x.bitwise_xor_(_shift(x, 27)).mul_(_signed(0x94D049BB133111EB))
    x = x.bitwise_xor_(_shift(x, 31))
    return _shift(x, 12)


def uniform(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in (0, 1), float64, for keys and token ids."""
    return _uniform_of(bits(keys, ids))


def gumbel(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float64, for keys and token ids."""
    return gumbel_of(bits(keys, ids))


def gumbel_of(drawn: torch.Tensor) -> torch.Tensor:
    """The noise that these bits stand for; it grows with them."""
    return -torch.log(-torch.log(_uniform_of(drawn)))


def _uniform_of(drawn: torch.Tensor) -> torch.Tensor:
    return (drawn.double() + 0.5) * 2.0**-52


def _mix(x: int) -> int:
    """splitmix64's finaliser on a Python integer."""
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x


def _shift(x: torch.Tensor, count: int) -> torch.Tensor:
    """Logical right shift; torch's own keeps the sign."""
    return (x >> count).bitwise_and_(2 ** (64 - count) - 1)
