"""What an engine knows before its first request: costs and pool of earlier processes, and the operator's file."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_backend.config import EngineConfig
from swift_backend.errors import ConfigError
from swift_backend.layer_knowledge import make_chooser, pool_path, read_layer_sets
from swift_backend.loading import LoadedModel, load_model
from swift_backend.params import SamplingParams
from swift_backend.pool_keeper import PoolKeeper
from swift_backend.sequence import Request, Sequence
from swift_backend.speculation.cost_measuring import CostMeasuring
from swift_backend.speculation.cost_model import CostModel
from swift_backend.speculation.knapsack import FIRST_DECAY
from swift_backend.speculation.layer_choice import LayerChooser
from swift_backend.speculation.pool import SHIPPED, Pool, save_pool
from tests.conftest import change_config

LAYERS = 7
A, B, C = 0b1100, 0b110000, 0b11000000
PROFILE = torch.full((3 * LAYERS,), 0.9)


class Start:
    """A process that starts: start(directory) is its knowledge, in a cache that all processes of a test share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.measured = 0

    def model(self, directory: Path | None = None, dtype: str = "float32") -> LoadedModel:
        return load_model(EngineConfig(model=str(directory or self._directory), dtype=dtype, kv_cache_tokens=64))

    def __call__(self, model: LoadedModel | None = None, **options: Any) -> LayerChooser:
        return make_chooser(EngineConfig(**options), model or self.model())


@pytest.fixture
def start(tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("SWIFT_CACHE_DIR", str(tmp_path / "cache"))
    made, run = Start(tiny_model("llama")), CostMeasuring.run

    def counted(self: CostMeasuring) -> CostModel:
        made.measured += 1
        return run(self, seconds=0.2)

    monkeypatch.setattr(CostMeasuring, "run", counted)
    return made


def origins(chooser: LayerChooser) -> list[tuple[int, str]]:
    return [(arm.skip_mask, arm.origin) for arm in chooser.pool]


def learn(chooser: LayerChooser, mask: int, accepted: int) -> None:
    """Twenty first tokens of drafts, and a request."""
    chooser.pool.add(mask, "search")
    for i in range(20):
        chooser.pool.note(mask, first=True, confidence=0.9, accepted=i < accepted)
    chooser.pool.remember(PROFILE, mask, 20, accepted)


def shipped(path: Path, *masks: int, layers: int = LAYERS) -> Path:
    """A file as swift_backend.optimize leaves it."""
    pool = Pool(layers)
    for mask in masks:
        pool.add(mask, SHIPPED)
    assert save_pool(path, pool)
    return path


def leave(model: LoadedModel, chooser: LayerChooser) -> None:
    """What an engine leaves behind that has learnt something."""
    keeper = PoolKeeper(pool_path(model), chooser.pool)
    chooser.pool.changes += 1
    keeper.save()


def test_the_second_start_measures_nothing_and_knows_what_the_first_learnt(start: Start, tmp_path: Path) -> None:
    first = start()
    assert start.measured == 1 and len(first.pool) == 0
    learn(first, A, accepted=18)
    leave(start.model(), first)
    second = start()
    assert start.measured == 1 and second.costs == first.costs
    assert second.pool.to_content() == first.pool.to_content() and origins(second) == [(A, "search")]
    assert second.pool.expected_alpha(A, PROFILE) == pytest.approx(first.pool.expected_alpha(A, PROFILE))
    assert sorted(one.name for one in (tmp_path / "cache").iterdir()) == ["costs", "pools"]


def test_all_parts_share_the_costs_and_follow_the_options(start: Start) -> None:
    chooser = start(protected_layers=2, skip_ratio=0.3, max_draft_tokens=3, search_share=0.0)
    assert (chooser.guide.ratio, chooser.guide.protected) == (0.3, 2)
    assert chooser._knapsack.costs is chooser.search._costs is chooser.costs
    assert (chooser._knapsack.protected, chooser._knapsack.most_draft_tokens) == (1, 3)
    proposed = [chooser.search._proposals.propose(0) for _ in range(20)]
    assert not any(mask & (0b11 | 0b11 << 12) for mask in proposed) and chooser.search._share == 0
    assert start(protected_layers=0)._knapsack.protected == 0
    assert start(max_draft_tokens=0)._knapsack.most_draft_tokens == 1


def test_a_trial_teaches_the_knapsack(start: Start) -> None:
    """A set that changes the states by 0.4 in all, and was right at half of the positions: a decay of ln 2 / 0.4."""
    chooser = start()
    one = Sequence(Request("r", [5] * 9, SamplingParams(), print), 50, seed=0)
    tell = chooser.search._on_trial
    tell(0b111100, 8, 16, one)
    assert chooser._knapsack.decay == FIRST_DECAY
    one.note_profile(PROFILE, 9)
    for _ in range(200):
        tell(0b111100, 8, 16, one)
    assert chooser._knapsack.decay == pytest.approx(math.log(2) / 0.4, rel=0.01)


def copied(model: Path, to: Path) -> Path:
    return Path(shutil.copytree(model, to / model.name))


def test_the_same_model_elsewhere_has_the_same_pool(start: Start, tmp_path: Path) -> None:
    here = start.model()
    assert pool_path(start.model(copied(here.directory, tmp_path / "moved"))) == pool_path(here)
    assert pool_path(here).parent == tmp_path / "cache" / "pools"


def test_another_model_has_another_pool(start: Start, tmp_path: Path) -> None:
    """Other options of the model, other weights, another type of them: what one learnt is nothing to the other."""
    here = start.model()
    retrained = copied(here.directory, tmp_path / "config")
    change_config(retrained, rms_norm_eps=1e-3)
    larger = copied(here.directory, tmp_path / "weights")
    with (larger / "model.safetensors").open("ab") as file:
        file.write(b"\0")
    others = [LoadedModel(one, here.dtype, here.runner, here.tokenizer) for one in (retrained, larger)]
    paths = {pool_path(one) for one in (here, *others, start.model(dtype="bfloat16"))}
    assert len(paths) == 4

    chooser = start(here)
    learn(chooser, A, accepted=3)
    leave(here, chooser)
    assert [len(start(one).pool) for one in (here, *others)] == [1, 0, 0]


def test_a_directory_of_any_name_gives_a_file(start: Start) -> None:
    model = start.model()
    named = model.directory.parent / ("Größe 7B:" + 200 * "x")
    named.symlink_to(model.directory)
    one = LoadedModel(named, model.dtype, model.runner, model.tokenizer)
    chooser = start(one)
    learn(chooser, A, accepted=3)
    leave(one, chooser)
    assert origins(start(one)) == [(A, "search")]
    assert pool_path(one).name.isascii()
    named.unlink()


def test_the_operators_sets_are_shipped_ones(start: Start, tmp_path: Path) -> None:
    """Also those that were found here before; what was shipped once and is no more becomes one of many."""
    chooser, model = start(), start.model()
    learn(chooser, B, accepted=18)
    leave(model, chooser)
    chooser = start(layer_sets=str(shipped(tmp_path / "sets.json", A, B)))
    assert sorted(origins(chooser)) == [(A, SHIPPED), (B, SHIPPED)]
    assert chooser.pool.expected_alpha(B, PROFILE) > chooser.pool.expected_alpha(A, PROFILE)
    leave(model, chooser)
    assert sorted(origins(start(layer_sets=str(shipped(tmp_path / "others.json", C))))) == [
        (A, "pool"),
        (B, "pool"),
        (C, SHIPPED),
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"{", "Expecting property name"),
        (b"\xff", "can't decode"),
        (b"[1]", "it is not of version 1"),
        (b'{"version": 2, "content": {}}', "it is not of version 1"),
        (b'{"version": 1}', "num_layers must be of type int"),
        pytest.param(b"[" * 10**5, "recursion", id="deep"),
    ],
)
def test_a_file_that_is_none_stops_the_start(start: Start, tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "sets.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^layer_sets cannot be read from {file}: .*{reason}"):
        start(layer_sets=str(file))


def test_a_file_of_another_model_stops_the_start(tmp_path: Path) -> None:
    file = shipped(tmp_path / "sets.json", A, layers=8)
    with pytest.raises(ConfigError, match=f"^layer_sets cannot be read from {file}: it is for 8 layers, and not for 7"):
        read_layer_sets(file, LAYERS)
    document = json.loads(file.read_text())
    document["content"]["num_layers"] = 7
    document["content"]["arms"][0]["skip_mask"] = "0x4000"
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="skip_mask must be of 14 bits"):
        read_layer_sets(file, LAYERS)


@pytest.mark.parametrize("damaged", [b"{", b'{"version": 1, "content": {"num_layers": 8}}'])
def test_a_pool_of_its_own_that_is_damaged_is_begun_anew(
    start: Start, caplog: pytest.LogCaptureFixture, damaged: bytes
) -> None:
    path = pool_path(start.model())
    path.parent.mkdir(parents=True)
    path.write_bytes(damaged)
    chooser = start()
    assert len(chooser.pool) == 0
    [record] = caplog.records
    assert record.levelname == "WARNING" and record.getMessage().startswith(f"{path} is not used: ")
    learn(chooser, A, accepted=18)
    leave(start.model(), chooser)
    assert origins(start()) == [(A, "search")]
