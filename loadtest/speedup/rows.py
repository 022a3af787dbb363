"""What do records come to? The contract's rows: sums over a category's batches, and their ratio to those of `off`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from loadtest.speedup.measuring import PLAIN
from loadtest.speedup.record import Record
from loadtest.statistics import Timed, interval, median_speedup, speedup


def rows_of(
    records: Sequence[Record], methods: Sequence[str], name_of: Callable[[str], str] = lambda category: category
) -> list[dict[str, Any]]:
    """One for each category, as name_of calls it, and method, in order."""
    names = dict.fromkeys(name_of(record.category) for record in records)
    return [
        row(name, method, [one for one in records if name_of(one.category) == name])
        for name in names
        for method in methods
    ]


def totals_of(records: Sequence[Record], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """One for each method, over everything."""
    return {method: row("all", method, records) for method in methods}


def row(category: str, method: str, records: Sequence[Record]) -> dict[str, Any]:
    """The contract's row of one method, from the records of all methods; more figures beside.

    Speed-ups are over batches in which neither the method nor `off` failed. identical_to_off: no answer differs, and
    all were compared; differing: how many do.
    """
    ours = [one for one in records if one.method == method]
    answered = [one for one in ours if not one.error]
    pairs = timed(records, method)
    bounds = interval(pairs)
    tokens, seconds = sum(one.tokens for one in answered), sum(one.decode_seconds for one in answered)
    summed = {name: sum(one.summed[name] for one in answered) for name in answered[0].summed} if answered else {}
    of = Counter(summed)
    ratios = [ratio for one in answered for ratio in one.draft_cost_ratios]
    prompts = sum(one.prompts for one in ours)
    same = sum(one.identical or 0 for one in ours)
    compared = sum(one.prompts for one in ours if one.identical is not None)
    return {
        "category": category,
        "method": method,
        "tokens": tokens,
        "decode_seconds": seconds,
        "tokens_per_second": _share(tokens, seconds),
        "speedup": speedup(pairs),
        "speedup_low": bounds[0] if bounds else None,
        "speedup_high": bounds[1] if bounds else None,
        "speedup_median": median_speedup(pairs),
        "acceptance_rate": _share(of["accepted_draft_tokens"], of["draft_tokens"]),
        "first_acceptance_rate": _share(of["accepted_first_draft_tokens"], of["first_draft_tokens"]),
        "tokens_per_round": _share(tokens, of["rounds"]),
        "drafted_per_round": _share(of["draft_tokens"], of["rounds"]),
        "draft_cost_ratio": _share(sum(ratios), len(ratios)),
        "rounds_without_draft": _share(of["rounds_without_draft"], of["rounds"]),
        "drafted": _counts(one.drafted for one in answered),
        "accepted": _counts(one.accepted for one in answered),
        **{f"{name}_share": _share(of[f"{name}_seconds"], seconds) for name in ("search", "draft", "verify", "decide")},
        "identical_to_off": same == prompts > 0,
        "differing": compared - same,
        "prompts": prompts,
        "errors": sum(one.prompts for one in ours if one.error),
        "layer_sets": sorted({name for one in answered for name in one.layer_sets}),
    }


def timed(records: Iterable[Record], method: str) -> list[Timed]:
    """The method's batches beside those of `off`, in order."""
    good = {(one.batch, one.method): one for one in records if not one.error}
    pairs = [(one, good.get((number, PLAIN))) for (number, name), one in sorted(good.items()) if name == method]
    return [
        Timed(one.tokens, one.decode_seconds, base.tokens, base.decode_seconds)
        for one, base in pairs
        if base is not None
    ]


def stream_of(records: Sequence[Record], methods: Sequence[str]) -> list[dict[str, Any]]:
    """Batch by batch: its segment, and each method's acceptance, speed over `off`, c and layer sets."""
    found: list[dict[str, Any]] = []
    for number in dict.fromkeys(one.batch for one in records):
        some = [one for one in records if one.batch == number]
        names = ("acceptance_rate", "speedup", "tokens_per_round", "draft_cost_ratio", "layer_sets", "errors")
        made = {method: row("", method, some) for method in methods}
        figures = {method: {name: one[name] for name in names} for method, one in made.items()}
        found.append({"segment": some[0].segment, "category": some[0].category, "methods": figures})
    return found


def _counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
