"""Whole sublayers as one call: as torch has them, and each row with the same bits whatever else is in the pass."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_backend.batch import BatchShape, RowGroup, build_batch
from swift_backend.kv_cache import KVCache
from swift_backend.model.config import read_config
from swift_backend.model.decoder import Decoder, load_decoder
from swift_backend.model.layers import AttentionSublayer, MlpSublayer, Sublayer
from swift_backend.model.rowwise import RowwiseLinear, kernel
from swift_backend.model.weights import Weights
from swift_backend.runner import Runner
from tests.conftest import TINY_VOCABULARY, save_tiny_model, tiny_config
from tests.threads import on_threads

if kernel() is None:
    pytest.skip("our kernels are not for this CPU, or were not built", allow_module_level=True)

CPU = torch.device("cpu")
FUSED = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3")
PARTLY = ("granite", "olmo2", "gemma2", "gemma3_text", "stablelm", "gpt_neox")
# Beyond two chunks of keys; a chunk's and a block's edges are in it.
LONG = 1100


def load(directory: Path) -> Decoder:
    return load_decoder(read_config(directory), Weights.open(directory), torch.bfloat16, CPU)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Decoder]:
    """decoder("llama") has random bfloat16 weights and takes long texts."""
    made: dict[str, Decoder] = {}

    def get(architecture: str) -> Decoder:
        if architecture not in made:
            config = tiny_config(architecture, max_position_embeddings=2048, num_hidden_layers=3)
            directory = save_tiny_model(tmp_path_factory.mktemp(architecture), config, draw_norms=True)
            made[architecture] = load(directory)
        return made[architecture]

    return get


def by_torch(decoder: Decoder) -> Decoder:
    """The same weights and products, the rest by torch."""

    def plain(sublayer: Sublayer) -> Sublayer:
        if isinstance(sublayer, AttentionSublayer):
            return replace(sublayer, fused=None, rowwise=None)
        return replace(sublayer, fused=None) if isinstance(sublayer, MlpSublayer) else sublayer

    return replace(decoder, sublayers=tuple(map(plain, decoder.sublayers)))


def runner_of(decoder: Decoder, capacity: int = 4096) -> Runner:
    c = decoder.config
    cache = KVCache(c.num_layers, capacity, c.num_kv_heads, c.head_dim, torch.float32, CPU)
    return Runner(decoder, cache, CPU)


def text(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(TINY_VOCABULARY) for _ in range(length)]


@pytest.mark.parametrize("architecture", FUSED)
def test_known_families_run_in_one_call(decoder: Callable[[str], Decoder], architecture: str) -> None:
    for sublayer in decoder(architecture).sublayers:
        assert isinstance(sublayer, AttentionSublayer | MlpSublayer) and sublayer.fused is not None


@pytest.mark.parametrize("architecture", [*FUSED, *PARTLY])
def test_it_is_what_torch_makes_of_the_same_weights(decoder: Callable[[str], Decoder], architecture: str) -> None:
    """A prompt in chunks, a row, a draft, a tree and a second sequence, after each other and together."""
    ours, theirs = (runner_of(one) for one in (decoder(architecture), by_torch(decoder(architecture))))
    prompt = text(LONG)
    passes = [
        [RowGroup(prompt[:300], 0, 32, 300)],
        [RowGroup(prompt[300:], 300, 32, LONG - 300), RowGroup([7], 0, 2000, 1)],
        [RowGroup([5], LONG, 32, 1)],
        [RowGroup([6, 7, 8, 9], LONG + 1, 32, 4), RowGroup([3, 4], 1, 2000, 2)],
        [RowGroup([6, 7, 8, 9, 4], LONG + 1, 32, 5, (-1, 0, 0, 2, 1)), RowGroup([3], 3, 2000, 1)],
    ]
    for groups in passes:
        torch.testing.assert_close(ours.forward(groups), theirs.forward(groups), rtol=2e-3, atol=2e-3)


def one_at_a_time(runner: Runner, tokens: list[int], extent: int) -> torch.Tensor:
    return torch.cat([runner.forward([RowGroup([token], at, extent, 1)]) for at, token in enumerate(tokens)])


@pytest.mark.parametrize("architecture", [*FUSED, *PARTLY])
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_a_row_has_the_same_bits_in_any_pass(
    decoder: Callable[[str], Decoder], architecture: str, data: st.DataObject
) -> None:
    """A text's logits token by token; and in chunks, beside another text, at other slots, on any number of threads."""
    length = data.draw(st.sampled_from([3, 40, 90, 700, 1100]), "length")
    runner, tokens = runner_of(decoder(architecture)), text(length, seed=1)
    alone = one_at_a_time(runner, tokens, 0)
    start, company = 16 * data.draw(st.integers(75, 100), "slot"), text(400, seed=2)
    found, at = [], 0
    while at < length:
        count = data.draw(st.sampled_from([1, 2, 3, 5, 7, 16, 100, 600]), "rows")
        rows = tokens[at : at + count]
        other = data.draw(st.integers(0, 40), "company")
        groups = [RowGroup(rows, at, start, len(rows)), *([RowGroup(company[:other], 0, 3000, other)] if other else [])]
        last = data.draw(st.booleans(), "company first")
        if last:
            groups.reverse()
        with on_threads(data.draw(st.sampled_from([1, 2, 3]), "threads")):
            logits = runner.forward(groups)
        found.append(
            logits[-len(rows) :] if groups[-1].first == at and groups[-1].extent_start == start else logits[: len(rows)]
        )
        at += len(rows)
    assert torch.equal(torch.cat(found), alone)


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma2"])
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_a_path_of_a_tree_has_the_bits_of_the_same_text_without_one(
    decoder: Callable[[str], Decoder], architecture: str, data: st.DataObject
) -> None:
    """Wherever in the cache its tokens lie, and once they have been moved to where they belong."""
    length = data.draw(st.sampled_from([1, 9, 63, 510, 520]), "length")
    parents = [-1]
    for row in range(1, data.draw(st.integers(1, 9), "rows")):
        parents.append(data.draw(st.integers(0, row - 1), "parent"))
    runner, tokens, drafted = runner_of(decoder(architecture)), text(length, seed=3), text(len(parents), seed=4)
    extent = runner.cache.reserve(length + 32)
    assert extent is not None
    runner.forward([RowGroup(tokens, 0, extent.start, 0)])
    runner.cache.commit(extent, length)
    group = RowGroup(drafted, length, extent.start, len(drafted), parents)
    logits = runner.forward([group])
    for row in range(len(drafted)):
        path = group.path(row)
        alone = one_at_a_time(runner, [*tokens, *(drafted[one] for one in path)], 2048)
        assert torch.equal(logits[row], alone[-1]), path
    runner.forward([group])  # the texts before were computed elsewhere
    runner.cache.gather(extent, path)
    runner.cache.commit(extent, len(path))
    next_one = runner.forward([RowGroup([11], length + len(path), extent.start, 1)])
    again = one_at_a_time(runner, [*tokens, *(drafted[one] for one in path), 11], 2048)
    assert torch.equal(next_one[0], again[-1])


def test_skipped_sublayers_are_not_computed(decoder: Callable[[str], Decoder]) -> None:
    ours, theirs = (runner_of(one) for one in (decoder("llama"), by_torch(decoder("llama"))))
    for kept in ([], [0, 3, 4], [1, 2, 5]):
        given = [RowGroup(text(20), 0, 0, 20)]
        torch.testing.assert_close(ours.forward(given, kept), theirs.forward(given, kept), rtol=2e-3, atol=2e-3)


def test_nothing_finite_of_one_sequence_is_lost_to_another(decoder: Callable[[str], Decoder]) -> None:
    """A slot with NaN is seen by its own sequence, and by no other."""
    runner = runner_of(decoder("llama"))
    runner.forward([RowGroup(text(20), 0, 0, 0), RowGroup(text(20), 0, 64, 0)])
    before = runner.forward([RowGroup([5], 20, 0, 1)])
    for slots in runner.cache.slots:
        slots[64:84] = torch.nan
        slots[21:64] = torch.nan
    mine, other = runner.forward([RowGroup([5], 20, 0, 1), RowGroup([5], 20, 64, 1)])
    assert torch.equal(mine, before[0]) and other.isnan().all()


def test_the_head_alone_is_of_the_same_kind(decoder: Callable[[str], Decoder]) -> None:
    assert isinstance(decoder("llama").head, RowwiseLinear)


def test_a_table_says_where_each_row_is() -> None:
    groups = [RowGroup([1, 2], 4, 32, 1), RowGroup([3, 4, 5], 2, 64, 1, (-1, 0, 0))]
    table, paths = build_batch(groups, CPU, BatchShape()).table
    assert table.tolist() == [[32, 4, 4, -1], [32, 4, 5, -1], [64, 2, 2, 0], [64, 2, 3, 1], [64, 2, 3, 3]]
    assert paths.tolist() == [0, 0, 1, 0, 2]
