"""What do the server's figures say about requests and speculation? From the text of its metrics page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from swift_client.core.errors import ProtocolError

_LINE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)(?: \d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PREFIX = "swift_"

Sample = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Histogram:
    """buckets: upper bound → how many were at most that.

    >>> Histogram(count=4, sum=2.0, buckets={0.5: 3.0, float("inf"): 4.0}).mean
    0.5
    """

    count: float = 0.0
    sum: float = 0.0
    buckets: Mapping[float, float] | None = None

    @property
    def mean(self) -> float:
        """0 before the first observation."""
        return self.sum / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """The `swift_` figures, counted since the server's start; samples has all of them by name and labels.

    >>> page = 'swift_draft_tokens_total{drafter="ngram"} 8\\nswift_accepted_draft_tokens_total{drafter="ngram"} 6'
    >>> metrics = Metrics.parse(page)
    >>> metrics.draft_tokens, metrics.acceptance_rate
    ({'ngram': 8.0}, 0.75)
    """

    samples: Mapping[Sample, float]

    @classmethod
    def parse(cls, page: str) -> Metrics:
        """ProtocolError where a line of ours is no sample."""
        samples: dict[Sample, float] = {}
        for line in page.splitlines():
            if not line.startswith(_PREFIX):
                continue
            match = _LINE.match(line)
            try:
                if match is None:
                    raise ValueError
                samples[match["name"], frozenset(_LABEL.findall(match["labels"] or ""))] = float(match["value"])
            except ValueError:
                raise ProtocolError(f"this is no line of a metrics page: {line:.120}") from None
        return cls(samples)

    def total(self, name: str, **labels: str) -> float:
        """The sum over the samples of a name that have these labels; name without `swift_`."""
        wanted = set(labels.items())
        return sum(value for (its, has), value in self.samples.items() if its == _PREFIX + name and wanted <= has)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """One figure for each value of a label; name without `swift_`."""
        found = (
            (dict(labels).get(label), value) for (its, labels), value in self.samples.items() if its == _PREFIX + name
        )
        return {key: value for key, value in sorted(found, key=str) if key is not None}

    def histogram(self, name: str) -> Histogram:
        """By its name without `swift_`, as in "time_to_first_token_seconds"."""
        buckets = sorted((float(bound), value) for bound, value in self.by_label(f"{name}_bucket", "le").items())
        return Histogram(self.total(f"{name}_count"), self.total(f"{name}_sum"), dict(buckets))

    @property
    def running_requests(self) -> float:
        """Now."""
        return self.total("running_requests")

    @property
    def waiting_requests(self) -> float:
        """Now."""
        return self.total("waiting_requests")

    @property
    def requests(self) -> dict[str, float]:
        """By outcome."""
        return self.by_label("requests_total", "outcome")

    @property
    def draft_tokens(self) -> dict[str, float]:
        """By drafter."""
        return self.by_label("draft_tokens_total", "drafter")

    @property
    def accepted_draft_tokens(self) -> dict[str, float]:
        """By drafter."""
        return self.by_label("accepted_draft_tokens_total", "drafter")

    @property
    def acceptance_rate(self) -> float:
        """Over all drafters, 0 before the first draft."""
        drafted = self.total("draft_tokens_total")
        return self.total("accepted_draft_tokens_total") / drafted if drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Committed tokens per full pass of a sequence, 0 before the first."""
        rounds = self.total("rounds_total")
        return self.total("generated_tokens_total") / rounds if rounds else 0.0
