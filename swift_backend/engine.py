"""The engine: receive, schedule, draft, verify, accept, commit, emit, one round after another."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from time import monotonic, perf_counter, sleep

from swift_backend.admission import Limits
from swift_backend.config import EngineConfig
from swift_backend.draft_head import DraftHead
from swift_backend.errors import EngineFailure, SwiftError
from swift_backend.failure import ends_engine, engine_failure, request_failure
from swift_backend.inbox import Inbox
from swift_backend.layer_knowledge import make_chooser, pool_path
from swift_backend.loading import LoadedModel, load_model
from swift_backend.lobby import Lobby
from swift_backend.metrics import StepReport, failed_report
from swift_backend.pace import MeasuredPace, mean_context
from swift_backend.pass_times import measure
from swift_backend.pool_keeper import PoolKeeper
from swift_backend.prefix_cache import PrefixCache
from swift_backend.scheduler import Work, plan_step
from swift_backend.sequence import Output, Request, Sequence, TokenLogprob
from swift_backend.speculation.batch_limit import BatchLimit
from swift_backend.speculation.cost_model import CostModel
from swift_backend.speculation.draft import Draft, Drafter
from swift_backend.speculation.draft_passes import DraftPasses
from swift_backend.speculation.draft_vocabulary import draft_vocabulary_size
from swift_backend.speculation.drafters import Drafters
from swift_backend.speculation.draw_cost import DrawCost
from swift_backend.speculation.layer_skip import LayerSkipDrafter
from swift_backend.speculation.lookahead import LookaheadDrafter
from swift_backend.speculation.ngram import NgramDrafter
from swift_backend.speculation.policy import Policy
from swift_backend.speculation.prices import Prices
from swift_backend.speculation.set_odds import PoolOdds
from swift_backend.speculation.verdict import Verdict
from swift_backend.starting import Starter
from swift_backend.stopping import append_until_stop
from swift_backend.verification import Verification

OnStep = Callable[[StepReport], None]
_log = logging.getLogger(__name__)
# While closing, for how long to look away when every request that is left is paused.
NAP_SECONDS = 0.01


class Engine:
    """Serves requests with one model on one device.

    submit, cancel, pause and close may be called from any thread; step and run belong to one.
    """

    def __init__(
        self, config: EngineConfig, model: LoadedModel | None = None, on_step: OnStep = lambda report: None
    ) -> None:
        """Load the model that config names, unless one is given; raises ModelLoadError or ConfigError.

        on_step: told on the engine's thread what each step did; must not block.
        """
        model = model or load_model(config)
        self.config = config
        self.model = model
        self.runner, self.tokenizer = model.runner, model.tokenizer
        self._cache = self.runner.cache
        shape = self.runner.decoder.config
        self.context_length = shape.context_length
        self._layers = make_chooser(config, model)
        self.pool_keeper = PoolKeeper(pool_path(model), self._layers.pool)
        limits = Limits(
            shape.vocab_size,
            shape.context_length,
            self._cache.capacity,
            config.max_draft_tokens,
            static_sets=config.layer_sets is not None,
        )
        self._eos_ids = frozenset(token for token in shape.eos_ids if 0 <= token < shape.vocab_size)
        self._inbox = Inbox(config.max_waiting, config.max_running)
        self.runner.on_failure(self._inbox.fail)
        self._prefixes = PrefixCache(self._cache, enabled=config.prefix_cache)
        self._lobby = Lobby(self._prefixes)
        self._running: list[Sequence] = []
        coupled = config.acceptance == "coupled"  # by rejection, no policy drafts
        passes = DraftPasses(self.runner, self.costs, with_probs=not coupled)
        size = draft_vocabulary_size(shape.vocab_size, config.draft_vocabulary) if coupled else 0
        self._draft_head = DraftHead(passes, self.runner, self.costs, self._layers.pool.tokens, size, self._eos_ids)
        draw_cost, odds = DrawCost(), PoolOdds(self._layers.pool)
        prices, stored = Prices(self.costs), config.ngram_store_tokens
        self._policy = Policy(passes, prices, odds, draw_cost, stored, siblings=config.siblings)
        others: dict[str, Drafter] = {"ngram": NgramDrafter(), "lookahead": LookaheadDrafter()}
        self._drafter: Drafter = Drafters(self._policy, LayerSkipDrafter(passes), others)
        self._starter = Starter(config, limits, self.tokenizer, self._policy.new_state)
        self._verification = Verification(self.runner, self._layers, config.acceptance, self._own_failure, draw_cost)
        times = measure(self.runner)
        self._batch_limit = BatchLimit(times, 1 - self._layers.guide.ratio)
        self._pace = MeasuredPace(times, self._batch_limit if config.limit_drafts else None, self.costs)
        self._report, self._on_step = StepReport(), on_step
        self._drain_until = 0.0

    # any thread

    def submit(self, request: Request) -> None:
        """Queue a request; InvalidRequest when it can never run, Unavailable when there is no room to wait."""
        self._inbox.submit(self._starter.complete(request))

    def cancel(self, request_id: str) -> None:
        """End a request with finish_reason "cancelled" within one round; unknown ids are ignored."""
        self._inbox.cancel(request_id)

    def pause(self, request_id: str, paused: bool) -> None:
        """Hold a request within a round, because its reader lags behind, or let it go on; unknown ids are ignored."""
        self._inbox.pause(request_id, paused)

    def close(self, drain_seconds: float = 0.0) -> None:
        """Refuse new requests; run() lets the open ones go on for so long, cancels the rest and returns."""
        until = monotonic() + drain_seconds
        self._drain_until = min(self._drain_until, until) if self._inbox.closed else until
        self._inbox.close()

    # the engine's thread

    def run(self) -> None:
        """Step until closed. An exception in a step fails every open request and is raised again."""
        try:
            while not self._inbox.closed:
                if not self.step():
                    self._inbox.wait(self._seconds_to_deadline())
            self._drain()
        except Exception as error:
            self._inbox.close("the engine has failed")
            self._fail_all(engine_failure(error))
            raise

    def step(self) -> bool:
        """One round for every sequence that the step has room for; False when there was nothing to do."""
        self._receive()
        plan = plan_step(self._running, self.config.max_step_tokens, self.config.max_draft_tokens, self._pace)
        if plan:
            drafts = self._draft(plan)
            started = perf_counter()
            verdicts = self._verification.verify(plan, drafts)
            self._commit(plan, drafts, verdicts, perf_counter() - started)
            self._search(plan, drafts, verdicts, perf_counter() - started)
        self._step_done()
        return bool(plan)

    def check_invariants(self) -> None:
        """AssertionError when an invariant of the design does not hold between two steps."""
        self._cache.check_integrity()
        assert self._cache.tokens_used == sum(s.extent.size for s in self._running if s.extent)
        for sequence in self._running:
            assert sequence.extent is not None and not sequence.finished
            assert sequence.num_output_tokens == 0 or sequence.kv_len == len(sequence.tokens) - 1
            assert 0 <= sequence.num_output_tokens < sequence.max_tokens
        assert all(sequence.extent is None for sequence in self._lobby)

    @property
    def costs(self) -> CostModel:
        """What passes cost on this machine."""
        return self._layers.costs

    @property
    def idle(self) -> bool:
        """No request waits or runs."""
        return not self._running and not self._lobby

    def _receive(self) -> None:
        mail = self._inbox.take()
        new = [self._starter.sequence(request) for request in mail.requests]
        for sequence in new:  # all of them first, so that nobody is lost if one ends the engine
            self._lobby.add(sequence)
        for sequence in new:
            with self._own_failure(sequence):
                self._starter.furnish(sequence, self._eos_ids)
        self._end_withdrawn(mail.cancelled)
        for sequence in self._running:
            sequence.paused = mail.paused.get(sequence.request.request_id, sequence.paused)
        self._lobby.admit(self._running, self.config.max_running)
        self._inbox.note_standing(len(self._lobby), self.config.max_running - len(self._running))

    def _end_withdrawn(self, cancelled: set[str]) -> None:
        now = monotonic()
        for sequence in [*self._running, *self._lobby]:
            if sequence.request.request_id in cancelled:
                self._end(sequence, "cancelled")
            elif now >= sequence.deadline:
                self._end(sequence, "timeout")

    def _draft(self, plan: list[Work]) -> list[Draft]:
        """A draft for each work; a drafter that fails costs its drafts, and nobody's answer."""
        try:
            return self._drafter.draft(plan)
        except Exception as error:
            if ends_engine(error):
                raise
            _log.error("drafting failed, these requests go on without", exc_info=error)
            for work in plan:
                work.sequence.drafting_failed |= work.draft_budget > 0
            return [Draft() for _ in plan]

    def _search(self, plan: list[Work], drafts: list[Draft], verdicts: Seq[Verdict | None], seconds: float) -> None:
        """Let the sequences that decode try other layer sets, in the share of the time that is for it.

        Not in a batch in which nobody drafts: there the time is better spent on tokens.
        """
        if len(plan) > 1 and not any(draft.passes for draft in drafts):
            return
        for work, draft, verdict in zip(plan, drafts, verdicts, strict=True):
            sequence = work.sequence
            if verdict is not None and sequence.num_output_tokens > 1 and not sequence.finished:
                with self._own_failure(sequence):
                    spent = self._layers.round_done(sequence, seconds / len(plan) + draft.seconds)
                    self._report.search_seconds += spent

    def _commit(self, plan: list[Work], drafts: list[Draft], verdicts: Seq[Verdict | None], seconds: float) -> None:
        """Make the accepted tokens part of their sequences and emit them; end what is finished.

        seconds: what the full pass took.
        """
        if self.runner.device.type == "cpu" or any(verdicts):  # else nobody waited for the pass
            self._pace.note_step(plan, sum(map(len, drafts)), seconds - self._verification.draw_seconds)
        self._serve_last([work.sequence for work in plan])
        accepted: list[int] = []
        for work, draft, verdict in zip(plan, drafts, verdicts, strict=True):
            accepted.append(0)
            if work.sequence.finished:
                continue
            with self._own_failure(work.sequence):
                accepted[-1] = self._commit_one(work, draft, verdict, seconds / len(plan))
        fixed = [i for i, work in enumerate(plan) if work.sequence.drafting is None]  # a policy looks after itself
        context = mean_context([plan[i].sequence for i in fixed if drafts[i].passes])
        rounds = [(drafts[i].passes, len(drafts[i]), accepted[i]) for i in fixed]
        self._batch_limit.note_round(rounds, sum(drafts[i].seconds for i in fixed), context)

    def _commit_one(self, work: Work, draft: Draft, verdict: Verdict | None, seconds: float) -> int:
        """Commit one sequence's share of a step, and say how many drafted tokens it accepted."""
        sequence = work.sequence
        assert sequence.extent is not None
        self._cache.commit(sequence.extent, work.num_tokens)
        if verdict is None:
            return 0
        first = sequence.num_output_tokens
        text = append_until_stop(sequence, verdict.token_ids, self._eos_ids)
        committed = sequence.num_output_tokens - first
        path = verdict.path[:committed]
        self._cache.gather(sequence.extent, path[: max(committed - 1, 0)])
        self._cache.commit(sequence.extent, max(committed - 1, 0))
        decided = 0.0 if sequence.drafting is None else sequence.drafting.decide_seconds
        one = draft.round(path, committed, seconds, decided)
        if first:
            sequence.note_round(one)
            self._report.note_round(one, draft.skipped_sublayers)
            self._layers.note_round(sequence, draft, verdict.token_ids[:committed])
            if sequence.drafting is not None:
                self._policy.note_round(sequence, draft, verdict.token_ids[:committed])
            if sequence.lookahead is not None:
                sequence.lookahead.note(verdict.following)
        logprobs = verdict.logprobs[:committed]
        if committed:
            sequence.note_tokens(one.origins, logprobs, monotonic())
            self._report.note_tokens(sequence, committed)
        error = None
        if verdict.broken and not sequence.finished:
            error = EngineFailure(f"the model's logits at position {len(sequence.tokens)} are no finite numbers")
            sequence.finish_reason = "error"
            text += sequence.text.flush()[0]
        self._emit(sequence, text, committed, logprobs, error)
        return len(path)

    def _serve_last(self, served: list[Sequence]) -> None:
        """Put those who had their turn behind those who had not."""
        turn = set(map(id, served))
        self._running.sort(key=lambda sequence: id(sequence) in turn)

    def _emit(
        self,
        sequence: Sequence,
        text: str,
        num_tokens: int = 0,
        logprobs: tuple[TokenLogprob, ...] = (),
        error: SwiftError | None = None,
    ) -> None:
        """Send a delta, with the reason if it is the last; a finished sequence leaves the engine."""
        if sequence.finished:
            self._leave(sequence)
        sequence.request.on_output(sequence.news(text, num_tokens, logprobs, error))

    def _end(self, sequence: Sequence, reason: str) -> None:
        """End a sequence from outside, cancelled or timeout; what was held back of its text goes out."""
        with self._own_failure(sequence):
            sequence.finish_reason = reason
            self._emit(sequence, sequence.text.flush()[0])

    @contextlib.contextmanager
    def _own_failure(self, sequence: Sequence) -> Iterator[None]:
        """An exception inside ends this sequence and nothing else, unless it ends the engine."""
        try:
            yield
        except Exception as error:
            if ends_engine(error):
                raise
            _log.error("request %s failed", sequence.request.label or sequence.request.request_id, exc_info=error)
            sequence.finish_reason = "error"
            self._leave(sequence)
            with contextlib.suppress(Exception):  # it may have been the way out that failed
                sequence.request.on_output(sequence.news("", 0, error=request_failure(error)))

    def _leave(self, sequence: Sequence) -> None:
        """Free the place of a finished sequence; once."""
        if sequence in self._running:
            self._layers.ended(sequence)
            self._policy.ended(sequence)
            self._running.remove(sequence)
            self._prefixes.give_back(sequence)
        elif sequence in self._lobby:
            self._lobby.remove(sequence)
        else:
            return
        self._report.note_end(sequence, monotonic())

    def _step_done(self) -> None:
        """Report the step; check the invariants if asked to."""
        report = self._report
        report.running, report.waiting = len(self._running), len(self._lobby)
        report.kv_tokens_used, report.kv_tokens_kept = self._cache.tokens_used, self._cache.tokens_kept
        report.kv_tokens_capacity = self._cache.capacity
        self._report = StepReport(skipped_sublayers=report.skipped_sublayers)
        self._on_step(report)
        self.pool_keeper.tick(self.idle)
        self._draft_head.tick(self.idle)
        if self.config.debug:
            self.check_invariants()

    def _seconds_to_deadline(self) -> float | None:
        """How long an engine with nothing to do may sleep: paused requests have deadlines too."""
        earliest = min((sequence.deadline for sequence in (*self._running, *self._lobby)), default=math.inf)
        return None if earliest == math.inf else max(0.0, earliest - monotonic())

    def _drain(self) -> None:
        """Let the open requests go on until the time is up, and cancel what is left, mail that nobody read included."""
        while monotonic() < self._drain_until and (self.step() or not self.idle):
            if all(sequence.paused for sequence in self._running):
                sleep(NAP_SECONDS)
        self._receive()
        for sequence in [*self._running, *self._lobby]:
            self._end(sequence, "cancelled")
        self._step_done()
        self.pool_keeper.save()

    def _fail_all(self, error: SwiftError) -> None:
        """Tell every open request; nothing else is touched, since the state may be anything now."""
        requests = [s.request for s in (*self._running, *self._lobby)] + self._inbox.take().requests
        for request in requests:
            with contextlib.suppress(Exception):  # one that cannot be told keeps it from nobody
                request.on_output(Output(request.request_id, finish_reason="error", error=error))
        self._report.ended += map(failed_report, requests)  # beside what the failed step had done
        self._on_step(self._report)
