"""Which figures are published, under which names? The contract's, and a few more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """A metric's name and what it means. buckets: upper bounds, for histograms only; label: its label's name."""

    name: str
    kind: str
    help: str
    label: str = ""
    values: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


OUTCOMES = ("stop", "length", "cancelled", "timeout", "error", "invalid", "unavailable")
DRAFTERS = ("layer_skip", "ngram", "sibling", "lookahead")
_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
REQUESTS = Family("swift_requests_total", "counter", "Requests by how they ended", "outcome", OUTCOMES)
FAMILIES = (
    REQUESTS,
    Family("swift_prompt_tokens_total", "counter", "Prompt tokens of requests that got a first token"),
    Family("swift_reused_prompt_tokens_total", "counter", "Prompt tokens that were in the cache already"),
    Family("swift_generated_tokens_total", "counter", "Committed output tokens"),
    Family("swift_rounds_total", "counter", "Decode rounds, one for each sequence and full pass"),
    Family("swift_draft_tokens_total", "counter", "Drafted tokens", "drafter", DRAFTERS),
    Family("swift_accepted_draft_tokens_total", "counter", "Drafted tokens that were kept", "drafter", DRAFTERS),
    Family("swift_first_draft_tokens_total", "counter", "First tokens of drafts"),
    Family("swift_accepted_first_draft_tokens_total", "counter", "First tokens of drafts that were kept"),
    Family("swift_layer_search_seconds_total", "counter", "Time spent on trying other layer sets"),
    Family("swift_rounds_without_draft_total", "counter", "Decode rounds without a draft or a draft pass"),
    Family("swift_draft_passes_total", "counter", "Draft passes, one for each sequence in them"),
    Family("swift_draft_seconds_total", "counter", "Time of draft passes"),
    Family("swift_verify_seconds_total", "counter", "Time of full passes of decode rounds"),
    Family("swift_decide_seconds_total", "counter", "Time spent on what to draft"),
    Family("swift_running_requests", "gauge", "Requests that have a place in the cache"),
    Family("swift_waiting_requests", "gauge", "Requests that wait for a place"),
    Family("swift_kv_tokens_used", "gauge", "Cache slots of running requests"),
    Family("swift_kv_tokens_kept", "gauge", "Free cache slots that hold reusable prefixes"),
    Family("swift_kv_tokens_capacity", "gauge", "Cache slots in all"),
    Family("swift_skipped_sublayers", "gauge", "Sublayers that the latest draft pass skipped"),
    Family("swift_time_to_first_token_seconds", "histogram", "From arrival to the first token", buckets=_SLOW),
    Family("swift_time_per_output_token_seconds", "histogram", "Mean time between tokens of a request", buckets=_FAST),
    Family("swift_request_seconds", "histogram", "From arrival to the end", buckets=_SLOW),
    Family(
        "swift_accepted_per_round",
        "histogram",
        "Accepted tokens of rounds with a draft",
        buckets=(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0),
    ),
)
