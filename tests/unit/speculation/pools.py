"""Pools of a model of six layers, and prompts of two kinds."""

from __future__ import annotations

import torch

from swift_backend.speculation.pool import Pool

LAYERS = 6
A, B, C, D, E = (0b11 << 2 * layer for layer in range(5))
FULL = (1 << 2 * LAYERS) - 1
# Prompts of two kinds: alike within about 0.01, and 0.2 apart.
CODE, PROSE = torch.full((3 * LAYERS,), 0.7), torch.full((3 * LAYERS,), 0.9)


def prompt(kind: torch.Tensor, seed: int) -> torch.Tensor:
    noise: torch.Tensor = torch.randn(kind.shape, generator=torch.Generator().manual_seed(seed))
    return kind + 0.01 * noise


def pool_of(*masks: int, origin: str = "search", most_arms: int = 16, most_records: int = 256) -> Pool:
    pool = Pool(LAYERS, most_arms, most_records)
    for mask in masks:
        pool.add(mask, origin)
    return pool


def note(pool: Pool, mask: int, *accepted: bool) -> None:
    for one in accepted:
        pool.note(mask, first=False, confidence=0.9, accepted=one)


def finish(pool: Pool, mask: int, kind: torch.Tensor, alpha: float, count: int, drafted: int = 100) -> None:
    """So many requests of a kind, that share of whose tokens was accepted."""
    for seed in range(count):
        pool.remember(prompt(kind, seed), mask, drafted, alpha * drafted)


def masks(pool: Pool) -> list[int]:
    return [arm.skip_mask for arm in pool]


def remembered(pool: Pool) -> list[tuple[int, float]]:
    """Mask and drafted tokens of each record."""
    return [(int(record["skip_mask"], 16), record["drafted"]) for record in pool.to_content()["records"]]


def expectations(pool: Pool, kind: torch.Tensor) -> list[float]:
    return [pool.expected_alpha(mask, kind) for mask in masks(pool)]


def alpha_only(mask: int, alpha: float) -> float:
    return alpha
