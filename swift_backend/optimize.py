"""Which layer sets suit a model and its traffic? `python -m swift_backend.optimize --model M --dataset F --out FILE`

Answers prompts with the full model, tries layer sets on the answers, and writes the best ones to a file, with what they
would have brought for each prompt. SWIFT_LAYER_SETS=FILE has a server start from them; `speculation="static"` uses the
one that is best over all, and no other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from swift_backend.config import DTYPES
from swift_backend.errors import InvalidRequest, SwiftError
from swift_backend.llm import SwiftLLM
from swift_backend.params import SamplingParams
from swift_backend.speculation.corpus import Corpus, Text
from swift_backend.speculation.matchness import Trial
from swift_backend.speculation.offline import OfflineSearch, Scored
from swift_backend.speculation.pool import SHIPPED, Pool, save_pool
from swift_backend.speculation.pool_entries import Arm
from swift_backend.speculation.portfolio import portfolio
from swift_backend.text import dataset
from swift_backend.text.dataset import Row

# One for all traffic, and those that suit some of it better.
MOST_SETS = 8
# Sets that are tried together, which share what they do alike.
TOGETHER = 6
# Prompts that are answered together.
AT_ONCE = 8


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 with one line of error where a file, or the model, cannot be used."""
    arguments = _parser().parse_args(argv)
    try:
        return 0 if optimize(arguments, Console()) else 1
    except (SwiftError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def optimize(arguments: argparse.Namespace, console: Console) -> bool:
    """Search, show and write down; False, with a warning, where it cannot be written."""
    rows = first_rows(arguments.dataset, arguments.per_category)
    if arguments.out.is_dir():  # now, and not after all the work
        raise InvalidRequest("out", f"out must be a file, and {arguments.out} is a folder")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    llm = SwiftLLM(arguments.model, arguments.dtype, prefix_cache=False, kv_cache_tokens=arguments.kv_cache_tokens)
    with Progress(console=console) as progress:
        corpus = make_corpus(llm, rows, arguments.tokens, progress)
        search = OfflineSearch(
            corpus,
            llm.engine.costs,
            most_draft_tokens=arguments.most_draft_tokens,
            positions=arguments.positions,
            parallel=llm.engine.runner.decoder.config.parallel,
        )
        masks = find_sets(search, corpus, arguments.most_skipped, arguments.exchanges, progress)
        trials = try_on_all(corpus, masks, arguments.tokens, progress)
    console.print(report(search, corpus, masks, trials))
    return save_pool(arguments.out, make_pool(corpus, masks, trials))


def first_rows(files: Iterable[Path], per_category: int) -> list[Row]:
    """The first rows of each category."""
    found = dataset.by_category(row for file in files for row in dataset.read_rows(file))
    return [row for rows in found.values() for row in rows[:per_category]]


def make_corpus(llm: SwiftLLM, rows: Sequence[Row], tokens: int, progress: Progress) -> Corpus:
    """The prompts with the full model's answers; says how many are left out, and raises InvalidRequest if all are."""
    engine = llm.engine
    room = min(engine.context_length, engine.runner.cache.capacity) - tokens
    prompts = [(row.category, dataset.encode_prompt(engine.tokenizer, row.prompt)) for row in rows]
    fitting = [(category, prompt) for category, prompt in prompts if 0 < len(prompt) <= room]
    answers = _answers(llm, [prompt for _, prompt in fitting], tokens, progress)
    corpus = Corpus(engine.runner)
    added = [corpus.add(*one, answer) for one, answer in zip(fitting, answers, strict=True)]
    left_out = {
        f"empty, or longer than {room} tokens": len(rows) - len(fitting),
        "the cache is full, see --kv-cache-tokens": added.count(False),
    }
    for reason, count in left_out.items():
        if count:
            progress.console.print(f"{count} of {len(rows)} prompts left out: {reason}")
    if not corpus.texts:
        raise InvalidRequest("dataset", "dataset holds no prompt that can be used")
    return corpus


def _answers(llm: SwiftLLM, prompts: Sequence[list[int]], tokens: int, progress: Progress) -> list[list[int]]:
    task = progress.add_task("answers", total=len(prompts))
    params = SamplingParams(max_tokens=tokens, speculation="off")
    answers: list[list[int]] = []
    for begin in range(0, len(prompts), AT_ONCE):
        answers += [out.token_ids for out in llm.generate(prompts[begin : begin + AT_ONCE], params)]
        progress.update(task, completed=len(answers))
    return answers


def find_sets(
    search: OfflineSearch, corpus: Corpus, most_skipped: float, exchanges: int, progress: Progress
) -> list[int]:
    """The mask of the fastest set for all texts, and then those that serve some kinds of text, categories, better."""
    kinds = list(by_category(corpus).values())
    whole = _paths(search, corpus.texts, most_skipped, progress, "all")
    best = max(whole, key=_speed_up)
    task = progress.add_task("exchanges", total=exchanges)
    for _ in range(exchanges):
        best = search.exchange(best, corpus.texts)
        progress.update(task, advance=1, description=f"exchanges: {_in_short(best)}")
    candidates = [best, *sorted(whole, key=_speed_up, reverse=True)[:MOST_SETS]]
    for texts in kinds if len(kinds) > 1 else ():
        candidates.append(max(_paths(search, texts, most_skipped, progress, texts[0].category), key=_speed_up))
    masks = list(dict.fromkeys(one.layer_set.skip_mask for one in candidates))
    task = progress.add_task("kinds of text", total=len(kinds))
    by_kind: list[list[Scored]] = []
    for texts in kinds:
        by_kind.append(_score(search, masks, texts))
        progress.advance(task)
    speed_ups = {mask: [scored[i].speed_up for scored in by_kind] for i, mask in enumerate(masks)}
    return portfolio(speed_ups, best.layer_set.skip_mask, MOST_SETS)


def _paths(
    search: OfflineSearch, texts: Sequence[Text], most_skipped: float, progress: Progress, name: str
) -> list[Scored]:
    """What a trellis over these texts leaves out, at each share of the time, and how fast that is on them."""
    trellis = search.trellis(texts, most_skipped)
    task = progress.add_task(name, total=2 * trellis.num_sublayers)
    while not trellis.done:
        trellis.step()
        progress.advance(task)
    if not trellis.masks:
        raise InvalidRequest("most_skipped", "most_skipped leaves no sublayer of this model to be skipped")
    found = _score(search, trellis.masks, texts)
    best = f"{name}: {_in_short(max(found, key=_speed_up))}"
    progress.update(task, completed=2 * trellis.num_sublayers, description=best)
    if not progress.console.is_terminal:  # a bar is drawn once, at the end, where it cannot move
        progress.console.print(best)
    return found


def _score(search: OfflineSearch, masks: Sequence[int], texts: Sequence[Text]) -> list[Scored]:
    parts = [masks[begin : begin + TOGETHER] for begin in range(0, len(masks), TOGETHER)]
    return [one for part in parts for one in search.score(part, search.positions, texts)]


def _speed_up(scored: Scored) -> float:
    return scored.speed_up


def _in_short(scored: Scored) -> str:
    return f"c {scored.draft_ratio:.2f}: {scored.speed_up:.2f}x"


def try_on_all(corpus: Corpus, masks: Sequence[int], tokens: int, progress: Progress) -> list[Trial]:
    """What the sets would have drafted of each text's answer."""
    return [
        trial
        for text in progress.track(corpus.texts, description="trials")
        for trial in corpus.trials(masks, tokens, [text])
    ]


def make_pool(corpus: Corpus, masks: Sequence[int], trials: Sequence[Trial]) -> Pool:
    """The sets with what their drafts would have brought on each text, as records of their prompts."""
    pool = Pool(corpus.runner.decoder.config.num_layers)
    for mask in masks:
        pool.add(mask, SHIPPED)
    for text, trial in zip(corpus.texts, trials, strict=True):
        for i, mask in enumerate(masks):
            right, tried = float(trial.matches[i].sum()), float(trial.matches.shape[1])
            pool.remember(text.profile.values, mask, tried, right)
            _note(pool.arm(mask), trial.confidence[i].tolist(), trial.matches[i].tolist())
    return pool


def _note(arm: Arm | None, confidence: list[float], matches: list[bool]) -> None:
    assert arm is not None
    for sure, right in zip(confidence, matches, strict=True):
        arm.first.note(sure, right)


def report(search: OfflineSearch, corpus: Corpus, masks: Sequence[int], trials: Sequence[Trial]) -> Table:
    """How the sets do in each category: c, α, and tokens per second over plain decoding."""
    table = Table("category", *(f"{mask:#x}" for mask in masks), title="layer sets")
    for category, texts in [*by_category(corpus).items(), ("all", corpus.texts)]:
        ours = set(map(id, texts))
        theirs = [trial for text, trial in zip(corpus.texts, trials, strict=True) if id(text) in ours]
        table.add_row(category, *(_cell(scored) for scored in search.judge(masks, theirs, texts)))
    return table


def by_category(corpus: Corpus) -> dict[str, list[Text]]:
    """The texts of each category."""
    found: dict[str, list[Text]] = {}
    for text in corpus.texts:
        found.setdefault(text.category, []).append(text)
    return found


def _cell(scored: Scored) -> str:
    return f"{scored.speed_up:.2f}x  γ {scored.length}\nc {scored.draft_ratio:.2f}  α {scored.played.alpha:.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m swift_backend.optimize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", help="directory, hub id or .gguf file; the default model if left out")
    add("--dtype", default="auto", choices=DTYPES)
    add("--dataset", type=Path, action="append", required=True, metavar="FILE.jsonl", help="may be given several times")
    add("--out", type=Path, required=True, metavar="FILE.json")
    add("--per-category", type=_whole(1), default=3, help="prompts of each category (default: 3)")
    add("--tokens", type=_whole(1), default=48, help="of each answer (default: 48)")
    add("--positions", type=_whole(1), default=16, help="of each answer, while sets are compared (default: 16)")
    add("--most-draft-tokens", type=_whole(1), default=5, help="the longest draft (default: 5)")
    add("--most-skipped", type=_share, default=0.65, help="share of the sublayers (default: 0.65)")
    add("--exchanges", type=_whole(0), default=1, help="tries to exchange sublayers of the best set; slow (default: 1)")
    add("--kv-cache-tokens", type=_whole(2), default=16384, help="for all texts at once (default: 16384)")
    return parser


def _whole(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"must be >= {low}, got {value}")
        return value

    return parse


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be in (0, 1], got {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
