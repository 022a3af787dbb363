"""Which sublayers would a prompt's draft skip, and what is each worth? `python -m swift_backend.inspect`.

Shows for each layer how much its attention and its MLP change the prompt's hidden states, and what they cost here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from swift_backend.batch import RowGroup
from swift_backend.config import DTYPES
from swift_backend.errors import InvalidRequest, SwiftError
from swift_backend.llm import SwiftLLM
from swift_backend.request_keys import is_text
from swift_backend.runner import Runner
from swift_backend.speculation.cost_measuring import CostMeasuring
from swift_backend.speculation.cost_model import CostModel
from swift_backend.speculation.layer_set import LayerSet
from swift_backend.speculation.similarity import LayerSimilarity, Profile, most_redundant, skip_ratio

PROMPT = "Swifts fly for months without landing: they eat, drink and even sleep high up in the air."
VERIFIED_ROWS = (2, 4, 8)
BAR_WIDTH = 10


@dataclass(frozen=True, slots=True)
class Picture:
    """What is shown: of each sublayer, and of each layer, the similarity of input and output; what a draft skips.

    costs: of passes on this machine; context: the slots that a row looks at in those that are shown. parallel:
    attention and MLP of a layer are one sublayer.
    """

    title: str
    sublayers: tuple[float, ...]
    layers: tuple[float, ...]
    layer_set: LayerSet
    costs: CostModel
    context: int
    parallel: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 with one line of error where the model, or the prompt, cannot be used."""
    parsed = _parser().parse_args(argv)
    try:
        llm = SwiftLLM(parsed.model, parsed.dtype, max_running=1)  # a cache for one is enough
        picture = look(llm, parsed.prompt, parsed.context)
    except SwiftError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console = Console()
    console.print(layer_table(picture))
    console.print(summary(picture))
    return 0


def look(llm: SwiftLLM, prompt: str, context: int | None = None) -> Picture:
    """Run the prompt, choose by the engine's options, and measure this machine; raises InvalidRequest.

    llm: one that has served nothing yet, since measuring overwrites the cache. context: None is the prompt's length.
    """
    engine = llm.engine
    ids = _token_ids(llm, prompt)
    profile = prompt_profile(engine.runner, ids)
    given = engine.config.skip_ratio
    shape = engine.runner.decoder.config
    ratio = skip_ratio(shape.num_layers) if given is None else given
    spared = engine.config.protected_layers
    return Picture(
        title=f"{engine.model.directory.name}, {engine.model.dtype}, a prompt of {len(ids)} tokens",
        sublayers=tuple(profile.sublayers.tolist()),
        layers=tuple(profile.layers.tolist()),
        layer_set=most_redundant(profile.layers, ratio, spared, parallel=shape.parallel),
        costs=CostMeasuring(engine.runner).run(),
        context=len(ids) if context is None else context,
        parallel=shape.parallel,
    )


def prompt_profile(runner: Runner, ids: list[int]) -> Profile:
    """What the prompt does to the hidden states; InvalidRequest where the model or the cache has no room for it."""
    room = min(runner.decoder.config.context_length, runner.cache.capacity)
    extent = runner.cache.reserve(len(ids)) if len(ids) <= room else None
    if extent is None:
        raise InvalidRequest("prompt", f"prompt must be at most {room} tokens long, got {len(ids)}")
    seen = LayerSimilarity([(0, len(ids))])
    runner.forward([RowGroup(ids, 0, extent.start, 0)], observe=seen.observe)
    runner.cache.release(extent)
    return Profile(seen.profiles()[0])


def layer_table(picture: Picture) -> Table:
    """A row for each layer: whether it is skipped, how similar it leaves the states, and what that costs."""
    table = Table(title=Text(picture.title), box=None, padding=(0, 1, 0, 0))
    table.caption = "cos: similarity of the hidden states before and after"
    table.add_column("layer", justify="right", no_wrap=True)
    table.add_column("cos", justify="right", no_wrap=True)
    names = ("attention and MLP",) if picture.parallel else ("attention", "MLP")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("cos", justify="right", no_wrap=True)
        table.add_column("", width=BAR_WIDTH)
        table.add_column("ms", justify="right", no_wrap=True)
    for layer, similarity in enumerate(picture.layers):
        cells = [cell for kind in range(len(names)) for cell in _cells(picture, 2 * layer + kind)]
        table.add_row(str(layer), f"{similarity:.3f}", *cells)
    return table


def summary(picture: Picture) -> Table:
    """What the choice means for a draft, and what it costs to verify one."""
    layer_set, costs, context = picture.layer_set, picture.costs, picture.context
    full = costs.seconds(1, context)
    table = Table(show_header=False, box=None)
    table.add_row("mask", f"{layer_set.skip_mask:#x}")
    sublayers = (1 if picture.parallel else 2) * layer_set.num_layers
    table.add_row("skipped", f"{layer_set.skip_mask.bit_count()} of {sublayers} sublayers")
    table.add_row("skipped share of the sublayers' time", f"{_skipped_share(picture):.1%}")
    table.add_row("full pass of one row", f"{1e3 * full:.3f} ms at a context of {context}")
    table.add_row("c: draft pass over full pass", f"{costs.draft_ratio(layer_set, context):.3f}")
    for rows in VERIFIED_ROWS:
        seconds = costs.seconds(rows, context)
        table.add_row(f"full pass of {rows} rows", f"{1e3 * seconds:.3f} ms, {seconds / full:.2f} of one row's")
    return table


def _cells(picture: Picture, sublayer: int) -> Iterator[RenderableType]:
    """Kept or skipped, similarity as a number and as a bar, milliseconds."""
    similarity, kept = picture.sublayers[sublayer], picture.layer_set.keeps(sublayer)
    word, color = ("kept", "green") if kept else ("skipped", "red")
    yield Text(word, color)
    yield f"{similarity:.3f}"
    yield Bar(1.0, 0.0, min(max(0.0, similarity), 1.0), width=BAR_WIDTH, color=color)
    yield f"{1e3 * picture.costs.sublayer_seconds(picture.context)[sublayer % 2]:.3f}"


def _skipped_share(picture: Picture) -> float:
    seconds = picture.costs.sublayer_seconds(picture.context)
    skipped = [seconds[i % 2] for i in range(2 * picture.layer_set.num_layers) if not picture.layer_set.keeps(i)]
    return sum(skipped) / (picture.layer_set.num_layers * sum(seconds))


def _token_ids(llm: SwiftLLM, prompt: str) -> list[int]:
    """Of the prompt; InvalidRequest where the model knows none for it."""
    ids = llm.engine.tokenizer.encode(prompt) if is_text(prompt) else []
    if not ids or max(ids) >= llm.engine.runner.decoder.config.vocab_size:
        raise InvalidRequest("prompt", f"prompt must be text that the model knows tokens for, got {prompt!r:.80}")
    return ids


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m swift_backend.inspect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="directory, hub id or .gguf file; the default model if left out")
    parser.add_argument("--prompt", default=PROMPT, help="text as it is, without a chat template")
    parser.add_argument("--dtype", default="auto", choices=DTYPES)
    parser.add_argument("--context", type=_slots, help="tokens that a pass looks back at; the prompt's if left out")
    return parser


def _slots(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"context must be >= 0, got {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
