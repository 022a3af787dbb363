"""A pool outlives its process, takes in what was shipped, and refuses what is no pool."""

from __future__ import annotations

import functools
import math
import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swift_backend.speculation.pool import Pool, load_pool, save_pool
from tests.unit.speculation.pools import (
    CODE,
    LAYERS,
    PROSE,
    A,
    B,
    C,
    D,
    alpha_only,
    expectations,
    finish,
    masks,
    note,
    pool_of,
    remembered,
)


def test_the_best_is_the_best_over_all_texts_and_of_one_origin() -> None:
    pool = pool_of(A, B, origin="shipped")
    pool.add(C, "search")
    for mask, accepted in ((A, [True, False] * 50), (B, [True, True, False] * 50), (C, [True] * 100)):
        note(pool, mask, *accepted)
        finish(pool, mask, CODE, 0.9 if mask == A else 0.0, 20)
    assert pool.suggest(CODE, alpha_only) == A
    assert pool.best(alpha_only) == C
    assert pool.best(alpha_only, origin="shipped") == B
    assert pool.best(lambda mask, alpha: -alpha, origin="shipped") == A


def test_a_shipped_pool_brings_its_arms_and_what_is_known_of_them() -> None:
    own, shipped = pool_of(A, B), pool_of(B, C)
    note(own, B, True)
    note(shipped, B, *[False] * 20)
    note(shipped, C, *[True] * 20)
    finish(own, B, CODE, 0.9, 1)
    finish(shipped, B, CODE, 0.1, 1, drafted=50)
    finish(shipped, C, CODE, 0.1, 1, drafted=70)
    own.merge(shipped)
    assert [(arm.skip_mask, arm.origin) for arm in own] == [(A, "search"), (B, "shipped"), (C, "shipped")]
    arms = own.arm(B), own.arm(C), shipped.arm(C)
    assert arms[0] and arms[1] and arms[2]
    assert (arms[0].drafted, arms[1].later) == (1, arms[2].later)
    assert remembered(own) == [(B, 100), (C, 70)]
    note(own, C, False)
    assert arms[1].later != arms[2].later


def test_what_becomes_shipped_does_not_make_room_for_the_rest() -> None:
    own, shipped = pool_of(A, B, C, most_arms=3), pool_of(D, A)
    note(own, A, True)
    note(own, B, *[True] * 9)
    finish(own, A, CODE, 0.5, 1)
    own.merge(shipped)
    assert masks(own) == [A, C, D]
    arm = own.arm(A)
    assert arm and arm.drafted == 1 and remembered(own) == [(A, 100)]


def test_others_proposals_do_not_change_who_shipped_an_arm() -> None:
    own, other = pool_of(A, origin="shipped"), pool_of(A, B)
    own.merge(other, origin="search")
    assert [(arm.skip_mask, arm.origin) for arm in own] == [(A, "shipped"), (B, "search")]


def test_a_merged_arm_that_had_to_go_leaves_no_records() -> None:
    own, other = pool_of(most_arms=2), pool_of(A, B, C)
    for mask in (A, B, C):
        finish(other, mask, CODE, 0.5, 1)
    own.merge(other, origin="search")
    assert masks(own) == [B, C]
    assert remembered(own) == [(B, 100), (C, 100)]


def test_a_pool_of_another_model_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="another model"):
        Pool(LAYERS).merge(Pool(LAYERS + 1))


def known_pool() -> Pool:
    pool = pool_of(A, B, origin="similarity")
    pool.add(0b11_1111_0000, "shipped")
    rng = random.Random(3)
    for _ in range(300):
        pool.note(rng.choice([A, B]), first=rng.random() < 0.3, confidence=rng.random(), accepted=rng.random() < 0.6)
    finish(pool, A, CODE, 0.7, 3)
    finish(pool, B, PROSE, 0.2, 2)
    return pool


def test_a_pool_outlives_its_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, pool = tmp_path / "new" / "pool.json", known_pool()
    assert save_pool(path, pool)
    again = load_pool(path, LAYERS)
    assert list(again) == list(pool)
    for kind in (CODE, PROSE):
        assert expectations(again, kind) == expectations(pool, kind)
    assert again.to_content() == pool.to_content()
    assert caplog.records == []


def test_masks_are_written_as_operators_read_them() -> None:
    content = known_pool().to_content()
    assert [arm["skip_mask"] for arm in content["arms"]] == ["0x3", "0xc", "0x3f0"]
    assert {record["skip_mask"] for record in content["records"]} == {"0x3", "0xc"}


def test_without_a_file_the_pool_is_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_pool(tmp_path / "pool.json", LAYERS).to_content() == Pool(LAYERS).to_content()
    assert caplog.records == []


def other_model(data: bytes) -> bytes:
    return data.replace(b'"num_layers": 6', b'"num_layers": 30')


def other_version(data: bytes) -> bytes:
    return data.replace(b'"version": 1', b'"version": 2')


def foreign(data: bytes) -> bytes:
    return b'{"version": 1, "content": {"weights": [1, 2]}}'


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize("damage", [other_model, other_version, foreign, cut])
def test_a_file_that_cannot_be_used_costs_what_was_learnt_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "pool.json"
    assert save_pool(path, known_pool())
    damaged = damage(path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    pool = load_pool(path, LAYERS)
    assert (len(pool), pool.num_layers) == (0, LAYERS)
    [record] = caplog.records
    assert record.levelname == "WARNING" and str(path) in record.getMessage()
    assert save_pool(path, pool_of(A))
    assert masks(load_pool(path, LAYERS)) == [A]


def inside(content: Any, keys: tuple[Any, ...]) -> Any:
    """content[key][key]… up to the last key."""
    return functools.reduce(operator.getitem, keys[:-1], content)


def put(*keys: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: operator.setitem(inside(content, keys), keys[-1], value)


def drop(*keys: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: operator.delitem(inside(content, keys), keys[-1])


ARM, RECORD = ("arms", 0), ("records", 1)
OVER = [0.0] * 5
MALFORMED = [
    (put("num_layers", value=7), "for 7 layers, and not for 6"),
    (put("num_layers", value=6.0), "num_layers must be of type int"),
    (put("num_layers", value="6"), "num_layers must be of type int"),
    (drop("num_layers"), "num_layers must be of type int"),
    (put("arms", value={}), "arms must be of type list"),
    (drop("arms"), "arms must be of type list"),
    (put(*ARM, value="0x3f0"), "must be of type"),
    (put(*ARM, "skip_mask", value=3), "skip_mask must be of type str"),
    (put(*ARM, "skip_mask", value="layers"), "skip_mask must be hexadecimal"),
    (put(*ARM, "skip_mask", value="-0x3"), "skip_mask must be of 12 bits"),
    (put(*ARM, "skip_mask", value="0x1000"), "skip_mask must be of 12 bits"),
    (put(*ARM, "skip_mask", value="0xc"), "arm 0xc is there twice"),
    (put(*ARM, "skip_mask", value="0xfff"), "0x3, which is no arm"),
    (put(*ARM, "origin", value=None), "origin must be of type str"),
    (drop(*ARM, "first"), "first must be of type dict"),
    (put(*ARM, "later", "drafted", value=3), "drafted must be of type list"),
    (put(*ARM, "later", "drafted", value=[1.0] * 5), "evidence must have 6 buckets"),
    (put(*ARM, "later", "accepted", value=[0.0] * 7), "evidence must have 6 buckets"),
    (put(*ARM, "later", "drafted", value=[-1.0, *OVER]), "a number is out of range"),
    (put(*ARM, "later", "accepted", value=[-1.0, *OVER]), "a number is out of range"),
    (put(*ARM, "later", "drafted", value=[math.nan, *OVER]), "a number is out of range"),
    (put(*ARM, "later", "drafted", value=[10**400, *OVER]), "a number is out of range"),
    (put(*ARM, "later", "drafted", value=[True, *OVER]), "a number is out of range, or is none"),
    (put(*ARM, "later", "accepted", value=["1", *OVER]), "a number is out of range, or is none"),
    (put(*ARM, "later", "accepted", value=[1e6, *OVER]), "more tokens are accepted than drafted"),
    (put("records", value=None), "records must be of type list"),
    (put(*RECORD, value=[]), "a number is out of range, or is none"),
    (put(*RECORD, "drafted", value="many"), "a number is out of range, or is none"),
    (put(*RECORD, "accepted", value=-1), "a number is out of range"),
    (put(*RECORD, "accepted", value=101), "no more accepted ones"),
    (put(*RECORD, "drafted", value=0), "no more accepted ones"),
    (put(*RECORD, "skip_mask", value="0x0"), "0x0, which is no arm"),
    (put(*RECORD, "profile", value="0.5"), "profile must be of type list"),
    (put(*RECORD, "profile", 4, value=None), "a number is out of range, or is none"),
    (put(*RECORD, "profile", 4, value=math.nan), "a number is out of range"),
    (put(*RECORD, "profile", 4, value=1e39), "a number is out of range"),
    (put(*RECORD, "profile", value=[0.5] * 17), "profiles differ in length"),
]


@pytest.mark.parametrize(("change", "reason"), MALFORMED)
def test_malformed_content_is_refused_with_the_reason(change: Callable[[dict[str, Any]], None], reason: str) -> None:
    content = known_pool().to_content()
    Pool.from_content(LAYERS, content)
    change(content)
    with pytest.raises(ValueError, match=reason):
        Pool.from_content(LAYERS, content)


@pytest.mark.parametrize("content", [None, [], "pool", 3, {}])
def test_what_is_no_pool_at_all_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match="num_layers must be of type int"):
        Pool.from_content(LAYERS, content)


def test_a_file_with_more_than_there_is_room_for() -> None:
    """All arms are read; there are fewer again when the next is added. Of the records it is the latest."""
    big = pool_of(*range(30), most_arms=30, most_records=900)
    for drafted in range(1, 601):
        big.remember(CODE, 7, drafted, 0)
    note(big, 7, True)
    pool = Pool.from_content(LAYERS, big.to_content())
    assert masks(pool) == list(range(30))
    assert remembered(pool) == [(7, drafted) for drafted in range(89, 601)]
    pool.add(100, "search")
    assert len(pool) == 16 and {7, 29, 100} <= set(masks(pool))
