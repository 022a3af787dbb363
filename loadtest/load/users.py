"""Who puts load on a server? Locust's users, each with one request at a time on a client that all of them share."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from locust import LoadTestShape, User, constant, task
from locust.exception import StopUser
from swift_client import SwiftClient

from loadtest.load.asking import ask, asked, client_of
from loadtest.load.outcome import Outcome
from loadtest.load.shapes import users_at
from loadtest.load.summary import summary
from loadtest.load.workloads import WORKLOADS, Deck, prompts_of

# Requests that a test remembers; one that runs for days must not fill the memory.
MOST_KEPT = 20_000
# For the server to hear of it.
WITHDRAW_SECONDS = 8.0
# Or users of a server that refuses everything would fail a hundred times a second.
AFTER_FAILURE_SECONDS = 1.0


class Traffic:
    """What all users of one test have in common."""

    def __init__(self, options: Any, host: str, client: SwiftClient | None = None) -> None:
        """options: Locust's, ours among them; client: in place of one for the host."""
        workload = WORKLOADS[options.workload]
        files = [Path(name) for name in (options.dataset or "").split(",") if name]
        self.name, self.kind = workload.name, host.partition(":")[0]
        self.client = client or client_of(host)
        self.deck = Deck(prompts_of(workload, files), options.prompt_seed)
        self._prompt_format = options.prompt_format
        self.options = {"max_tokens": options.max_tokens or workload.max_tokens, "speculation": options.speculation}
        self.outcomes: deque[Outcome] = deque(maxlen=MOST_KEPT)
        self._numbers = count()
        self._record = Path(options.record) if options.record else None
        self._begun = time.time()

    def connect(self) -> None:
        """Or the first request would pay for the connection; raises SwiftClientError where nobody answers."""
        self.client.health()

    def question(self, prompt: str) -> dict[str, Any]:
        """For the client."""
        return asked(prompt, self._prompt_format)

    def number(self) -> int:
        """Of a new user."""
        return next(self._numbers)

    def note(self, outcome: Outcome) -> None:
        """Keep an outcome, and write it where it is asked for."""
        self.outcomes.append(outcome)
        if self._record is not None:
            with self._record.open("a", encoding="utf-8") as file:
                file.write(outcome.line())

    def summary(self) -> dict[str, Any]:
        """Of the latest MOST_KEPT requests that are over."""
        return summary(self.outcomes, max(time.time() - self._begun, 1e-9))

    def close(self) -> None:
        """Withdraw what is open, and let go of the server."""
        self.client.close()


def report(outcome: Outcome, kind: str, name: str, fire: Callable[..., None]) -> None:
    """Tell Locust: the request, with its tokens as its length, and beside it first token and gaps; milliseconds."""
    error = RuntimeError(outcome.error) if outcome.error else None
    events = [(kind, outcome.total, outcome.tokens, error)]
    if outcome.first_token is not None:
        events.append(("TTFT", outcome.first_token, 0, None))
    events += [("gap", seconds, tokens, None) for seconds, tokens in outcome.gaps]
    for request_type, seconds, tokens, exception in events:
        fire(
            request_type=request_type,
            name=name,
            response_time=1000 * seconds,
            response_length=tokens,
            exception=exception,
            context={},
        )


def withdraw(environment: Any) -> None:
    """End the test now, whatever --stop-timeout says: users withdraw their requests when they are killed."""
    environment.stop_timeout = 0
    environment.runner.user_greenlets.kill(timeout=WITHDRAW_SECONDS)
    environment.runner.quit()
    if environment.web_ui:
        environment.web_ui.stop()


class StreamingUser(User):
    """Asks, reads the answer as it comes, and asks again; over gRPC or HTTP, by the host's scheme."""

    wait_time = constant(0)

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._traffic: Traffic | None = environment.swift_traffic

    def on_start(self) -> None:
        """Without traffic there is nothing to do: what the web page was told cannot be used."""
        if self._traffic is None:
            raise StopUser
        self._number = self._traffic.number()
        self._prompts = self._traffic.deck.dealt_to(self._number)

    @task
    def ask(self) -> None:
        """One request."""
        assert self._traffic is not None
        traffic = self._traffic
        question, options = traffic.question(self._prompts.next()), dict(traffic.options)
        outcome = ask(traffic.client, self._number, question, options, on_withdrawn=traffic.note)
        traffic.note(outcome)
        report(outcome, traffic.kind, traffic.name, self.environment.events.request.fire)
        if outcome.error:
            time.sleep(AFTER_FAILURE_SECONDS)


class Course(LoadTestShape):
    """The number of users over time, as --shape says, from -u, -r and -t."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        """Users and how many of them may start in a second; None at the end."""
        assert self.runner is not None
        options: Any = self.runner.environment.parsed_options
        # Locust 2.35 keeps what its web page is told under another name.
        most = getattr(options, "users", None) or options.num_users or 1
        seconds = self.get_run_time()
        users = users_at(options.shape, seconds, options.run_time, most)
        return None if users is None else (users, options.spawn_rate or most)
