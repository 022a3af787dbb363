"""What does an engine know of layer sets and costs before its first request? What earlier processes left, and files."""

from __future__ import annotations

import hashlib
import json
import re
from functools import partial
from pathlib import Path

from swift_backend.config import EngineConfig, default_cache_dir
from swift_backend.errors import ConfigError
from swift_backend.loading import LoadedModel
from swift_backend.pool_keeper import ELSEWHERE
from swift_backend.scheduler import GUIDE_DRAFT
from swift_backend.sequence import Sequence
from swift_backend.speculation.cost_measuring import CostMeasuring
from swift_backend.speculation.cost_store import stored_costs
from swift_backend.speculation.knapsack import Knapsack
from swift_backend.speculation.layer_choice import Guide, LayerChooser
from swift_backend.speculation.layer_set import LayerSet, open_sublayers
from swift_backend.speculation.pool import POOL_VERSION, SHIPPED, Pool, load_pool
from swift_backend.speculation.proposals import Proposals
from swift_backend.speculation.search import OnlineSearch
from swift_backend.speculation.similarity import Profile


def make_chooser(config: EngineConfig, model: LoadedModel) -> LayerChooser:
    """Costs and pool of this model, measured or read. Raises ConfigError where config.layer_sets is no such file."""
    runner, shape = model.runner, model.runner.decoder.config
    layers, parallel = shape.num_layers, shape.parallel
    guide = Guide.for_model(layers, config.skip_ratio, config.protected_layers, parallel)
    costs = stored_costs(runner, model.dtype, default_cache_dir(), CostMeasuring(runner).run)
    pool = load_pool(pool_path(model), layers)
    for arm in pool:  # the operator may have changed the file since
        arm.origin = ELSEWHERE if arm.origin == SHIPPED else arm.origin
    if config.layer_sets is not None:
        pool.merge(read_layer_sets(Path(config.layer_sets), layers))
    most = max(min(config.max_draft_tokens, GUIDE_DRAFT), 1)
    spared = min(config.protected_layers, 1)  # the guide's rule is for its own sets; the paper spares one layer
    knapsack = Knapsack(costs, spared, most, parallel=parallel)
    may_go = open_sublayers(layers, spared, parallel)
    search = OnlineSearch(
        runner,
        costs,
        Proposals(may_go),
        most_draft_tokens=most,
        open_sublayers=may_go,
        share=config.search_share,
        on_trial=partial(_learn, knapsack),
    )
    return LayerChooser(guide, costs, knapsack, pool, search, most)


def _learn(knapsack: Knapsack, skip_mask: int, right: int, tried: int, sequence: Sequence) -> None:
    """What a trial says of how much a loss costs."""
    if sequence.profile is not None:
        layer_set = LayerSet(knapsack.costs.num_layers, skip_mask)
        knapsack.note(layer_set, Profile(sequence.profile).sublayers, right / tried)


def pool_path(model: LoadedModel) -> Path:
    """Beside the weight cache, by what the model is, not by where it lies."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", model.directory.name)[:80]
    return default_cache_dir() / "pools" / f"{name}-{model_digest(model.directory)}-{model.dtype}.json"


def model_digest(directory: Path) -> str:
    """Of config.json and the sizes of the weights; hashing gigabytes at every start would take longer than it saves."""
    sizes = sorted((file.name, file.stat().st_size) for file in directory.glob("*.safetensors"))
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    digest.update(repr(sizes).encode())
    return digest.hexdigest()[:12]


def read_layer_sets(path: Path, num_layers: int) -> Pool:
    """The file that an operator names, as swift_backend.optimize writes it; ConfigError where it is none."""
    try:
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict) or document.get("version") != POOL_VERSION:
            raise ValueError(f"it is not of version {POOL_VERSION}")
        return Pool.from_content(num_layers, document.get("content"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"layer_sets cannot be read from {path}: {error}") from None
