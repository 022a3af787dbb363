"""What does the engine do, in figures? One report for each step, handed over at its end; knows nothing of Triton."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from time import monotonic

from swift_backend.request_stats import RequestStats, Round
from swift_backend.sequence import Request, Sequence


@dataclass(frozen=True, slots=True)
class RequestReport:
    """A request that has ended.

    outcome: its finish reason, or error. seconds: from its arrival; label: what the client calls it.
    """

    label: str
    outcome: str
    num_prompt_tokens: int
    seconds: float
    stats: RequestStats

    @property
    def seconds_per_output_token(self) -> float | None:
        """The mean time between two tokens, None where there were fewer than two."""
        count = self.stats.output_tokens
        return self.stats.decode_seconds / (count - 1) if count > 1 else None


@dataclass(slots=True)
class StepReport:
    """What one step did, and how the engine stands after it. Counts are committed tokens only.

    first_draft_tokens: how many drafts there were. search_seconds: spent on trying other layer sets; draft_seconds,
    verify_seconds, decide_seconds: of decode rounds, in draft passes, in full ones, and on what to draft.
    accepted_per_round: one entry for each round of a sequence that had a draft to verify; skipped_sublayers: of the
    latest draft pass. used slots are those of running requests; kept ones hold prefixes and are as good as free.
    """

    ended: list[RequestReport] = field(default_factory=list)
    first_token_seconds: list[float] = field(default_factory=list)
    accepted_per_round: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    generated_tokens: int = 0
    reused_prompt_tokens: int = 0
    rounds: int = 0
    draft_tokens: Counter[str] = field(default_factory=Counter)
    accepted_draft_tokens: Counter[str] = field(default_factory=Counter)
    running: int = 0
    waiting: int = 0
    kv_tokens_used: int = 0
    kv_tokens_kept: int = 0
    kv_tokens_capacity: int = 0
    skipped_sublayers: int = 0
    first_draft_tokens: int = 0
    accepted_first_draft_tokens: int = 0
    search_seconds: float = 0.0
    rounds_without_draft: int = 0
    draft_passes: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    decide_seconds: float = 0.0

    def note_round(self, one: Round, skipped_sublayers: int = 0) -> None:
        """Count a decode round of a sequence; skipped_sublayers: of its draft passes, 0 where there was none."""
        self.rounds += 1
        self.skipped_sublayers = skipped_sublayers or self.skipped_sublayers
        self.draft_seconds += one.draft_seconds
        self.verify_seconds += one.verify_seconds
        self.decide_seconds += one.decide_seconds
        self.draft_tokens.update(one.drafted)
        self.accepted_draft_tokens.update(one.accepted)
        self.rounds_without_draft += one.plain
        self.draft_passes += one.passes
        if one.drafted:
            self.accepted_per_round.append(len(one.accepted))
        self.first_draft_tokens += one.chain > 0
        self.accepted_first_draft_tokens += one.accepted_chain > 0

    def note_tokens(self, sequence: Sequence, count: int) -> None:
        """Count `count` committed tokens, the sequence's newest."""
        self.generated_tokens += count
        if count and count == sequence.num_output_tokens:
            self.first_token_seconds.append(sequence.stats().time_to_first_token)
            self.prompt_tokens += sequence.num_prompt_tokens
            self.reused_prompt_tokens += sequence.reused_tokens

    def note_end(self, sequence: Sequence, now: float) -> None:
        """Count a request that has ended."""
        self.ended.append(_report(sequence.request, sequence.finish_reason, sequence.stats(), now))


def merged(reports: Iterable[StepReport]) -> StepReport:
    """Consecutive steps as one: counts and observations of all, the standings of the last; there must be one."""
    reports = list(reports)
    return replace(
        reports[-1],
        ended=[one for report in reports for one in report.ended],
        first_token_seconds=[one for report in reports for one in report.first_token_seconds],
        accepted_per_round=[one for report in reports for one in report.accepted_per_round],
        prompt_tokens=sum(report.prompt_tokens for report in reports),
        generated_tokens=sum(report.generated_tokens for report in reports),
        reused_prompt_tokens=sum(report.reused_prompt_tokens for report in reports),
        rounds=sum(report.rounds for report in reports),
        first_draft_tokens=sum(report.first_draft_tokens for report in reports),
        accepted_first_draft_tokens=sum(report.accepted_first_draft_tokens for report in reports),
        search_seconds=sum(report.search_seconds for report in reports),
        rounds_without_draft=sum(report.rounds_without_draft for report in reports),
        draft_passes=sum(report.draft_passes for report in reports),
        draft_seconds=sum(report.draft_seconds for report in reports),
        verify_seconds=sum(report.verify_seconds for report in reports),
        decide_seconds=sum(report.decide_seconds for report in reports),
        draft_tokens=sum((report.draft_tokens for report in reports), Counter[str]()),
        accepted_draft_tokens=sum((report.accepted_draft_tokens for report in reports), Counter[str]()),
    )


def failed_report(request: Request) -> RequestReport:
    """The report of a request that the engine's own failure has ended."""
    return _report(request, "error", RequestStats(), monotonic())


def _report(request: Request, outcome: str, stats: RequestStats, now: float) -> RequestReport:
    return RequestReport(request.label, outcome, len(request.prompt_ids), now - request.arrived, stats)


Key = tuple[str, str]  # a family's name, and its label's value or ""


def increments(report: StepReport) -> dict[Key, float]:
    """What a step adds to the counters."""
    added: dict[Key, float] = defaultdict(float)
    for request in report.ended:
        added["swift_requests_total", request.outcome] += 1
    added["swift_prompt_tokens_total", ""] = report.prompt_tokens
    added["swift_reused_prompt_tokens_total", ""] = report.reused_prompt_tokens
    added["swift_generated_tokens_total", ""] = report.generated_tokens
    added["swift_rounds_total", ""] = report.rounds
    added["swift_first_draft_tokens_total", ""] = report.first_draft_tokens
    added["swift_accepted_first_draft_tokens_total", ""] = report.accepted_first_draft_tokens
    added["swift_layer_search_seconds_total", ""] = report.search_seconds
    added["swift_rounds_without_draft_total", ""] = report.rounds_without_draft
    added["swift_draft_passes_total", ""] = report.draft_passes
    added["swift_draft_seconds_total", ""] = report.draft_seconds
    added["swift_verify_seconds_total", ""] = report.verify_seconds
    added["swift_decide_seconds_total", ""] = report.decide_seconds
    for name, counts in (
        ("swift_draft_tokens_total", report.draft_tokens),
        ("swift_accepted_draft_tokens_total", report.accepted_draft_tokens),
    ):
        for drafter, count in counts.items():
            added[name, drafter] = count
    return {key: value for key, value in added.items() if value}


def gauges(report: StepReport) -> dict[Key, float]:
    """How things stand after a step."""
    return {
        ("swift_running_requests", ""): report.running,
        ("swift_waiting_requests", ""): report.waiting,
        ("swift_kv_tokens_used", ""): report.kv_tokens_used,
        ("swift_kv_tokens_kept", ""): report.kv_tokens_kept,
        ("swift_kv_tokens_capacity", ""): report.kv_tokens_capacity,
        ("swift_skipped_sublayers", ""): report.skipped_sublayers,
    }


def observations(report: StepReport) -> list[tuple[str, float]]:
    """What a step adds to the histograms, by name."""
    per_token = (request.seconds_per_output_token for request in report.ended)
    return [
        *(("swift_time_to_first_token_seconds", seconds) for seconds in report.first_token_seconds),
        *(("swift_time_per_output_token_seconds", seconds) for seconds in per_token if seconds is not None),
        *(("swift_request_seconds", request.seconds) for request in report.ended),
        *(("swift_accepted_per_round", float(count)) for count in report.accepted_per_round),
    ]
