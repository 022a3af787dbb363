"""The engine: receive, schedule, draft, verify, accept, commit, emit, one round after another."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import replace
from time import monotonic

from swift_backend.admission import Limits
from swift_backend.batch import RowGroup
from swift_backend.config import EngineConfig
from swift_backend.errors import EngineFailure, SwiftError
from swift_backend.inbox import Inbox
from swift_backend.loading import LoadedModel, load_model
from swift_backend.processors import make_processors
from swift_backend.scheduler import Work, plan_step
from swift_backend.sequence import Output, Request, Sequence, TokenLogprob
from swift_backend.speculation.brake import Brake
from swift_backend.speculation.draft import Draft
from swift_backend.speculation.layer_skip import LayerSkipDrafter
from swift_backend.speculation.similarity import LayerSimilarity, most_redundant, skip_ratio
from swift_backend.speculation.verdict import Verdict, judge
from swift_backend.stopping import append_until_stop
from swift_backend.text.stream import TextStream


class Engine:
    """Serves requests with one model on one device.

    submit, cancel and close may be called from any thread; step and run belong to one.
    """

    def __init__(self, config: EngineConfig, model: LoadedModel | None = None) -> None:
        """Load the model that config names, unless one is given; raises ModelLoadError or ConfigError."""
        model = model or load_model(config)
        self.config = config
        self.model = model
        self.runner = model.runner
        self.tokenizer = model.tokenizer
        self._cache = self.runner.cache
        shape = self.runner.decoder.config
        self.context_length = shape.context_length
        self._limits = Limits(shape.vocab_size, shape.context_length, self._cache.capacity, config.max_draft_tokens)
        self._eos_ids = frozenset(token for token in shape.eos_ids if 0 <= token < shape.vocab_size)
        self._inbox = Inbox(config.max_waiting)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._drafter = LayerSkipDrafter(self.runner, with_probs=config.acceptance == "rejection")

    # any thread

    def submit(self, request: Request) -> None:
        """Queue a request; InvalidRequest when it can never run, Unavailable when there is no room to wait."""
        self._limits.check(request)
        if request.params.bad_words:
            request = replace(request, bad_word_ids=self._bad_word_ids(request.params.bad_words))
        self._inbox.submit(request)

    def cancel(self, request_id: str) -> None:
        """End a request with finish_reason "cancelled" within one round; unknown ids are ignored."""
        self._inbox.cancel(request_id)

    def close(self) -> None:
        """Refuse new requests; run() cancels the open ones and returns."""
        self._inbox.close()

    # the engine's thread

    def run(self) -> None:
        """Step until closed. An exception in a step fails every open request and is raised again."""
        try:
            while not self._inbox.closed:
                if not self.step():
                    self._inbox.wait()
            for sequence in self._open_sequences():
                self._end(sequence, "cancelled")
        except Exception as error:
            self._inbox.close("the engine has failed")
            self._fail_all(EngineFailure(f"the engine has failed ({type(error).__name__}); the server's log says more"))
            raise

    def step(self) -> bool:
        """One round for every sequence that the step has room for; False when there was nothing to do."""
        self._receive()
        plan = plan_step(self._running, self.config.max_step_tokens, self.config.max_draft_tokens)
        if not plan:
            return False
        drafts = self._draft(plan)
        started = monotonic()
        verdicts = self._verify(plan, drafts)
        self._commit(plan, drafts, verdicts, monotonic() - started)
        if self.config.debug:
            self.check_invariants()
        return True

    def check_invariants(self) -> None:
        """AssertionError when an invariant of the design does not hold between two steps."""
        self._cache.check_integrity()
        assert self._cache.tokens_used == sum(s.extent.size for s in self._running if s.extent)
        for sequence in self._running:
            assert sequence.extent is not None and not sequence.finished
            assert sequence.num_output_tokens == 0 or sequence.kv_len == len(sequence.tokens) - 1
            assert 0 <= sequence.num_output_tokens < sequence.max_tokens
        assert all(sequence.extent is None for sequence in self._waiting)

    @property
    def idle(self) -> bool:
        """No request waits or runs."""
        return not self._running and not self._waiting

    def _receive(self) -> None:
        mail = self._inbox.take()
        for request in mail.requests:
            self._waiting.append(self._start(request))
        self._end_withdrawn(mail.cancelled)
        while self._waiting and len(self._running) < self.config.max_running:
            head = self._waiting[0]
            head.extent = self._cache.reserve(head.num_prompt_tokens + head.max_tokens)
            if head.extent is None:
                break
            self._running.append(self._waiting.popleft())
        self._inbox.note_backlog(len(self._waiting))

    def _bad_word_ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Without those that no answer can hold: a tokenizer may know more ids than the model."""
        spelled = self.tokenizer.bad_word_ids(words)
        return tuple(ids for ids in spelled if len(ids) <= self.context_length and max(ids) < self._limits.vocab_size)

    def _start(self, request: Request) -> Sequence:
        params = request.params
        seed = secrets.randbits(63) if params.seed is None else params.seed
        text = TextStream(self.tokenizer, request.prompt_ids, params)
        processors = make_processors(params, request.prompt_ids, request.bad_word_ids, self._eos_ids)
        # The brake looks at the clock; by rejection, unlike by coupling, the tokens depend on what was drafted.
        brake = Brake() if params.speculation == "auto" and self.config.acceptance == "coupled" else None
        return Sequence(request, self._limits.output_limit(request), seed, text, processors, brake=brake)

    def _end_withdrawn(self, cancelled: set[str]) -> None:
        now = monotonic()
        for sequence in [*self._running, *self._waiting]:
            deadline = sequence.request.deadline
            if sequence.request.request_id in cancelled:
                self._end(sequence, "cancelled")
            elif deadline is not None and now >= deadline:
                self._end(sequence, "timeout")

    def _draft(self, plan: list[Work]) -> list[Draft]:
        return self._drafter.draft([work.sequence for work in plan], [work.draft_budget for work in plan])

    def _verify(self, plan: list[Work], drafts: list[Draft]) -> list[Verdict | None]:
        """One full pass over known and drafted tokens; a verdict for each work whose next token is due."""
        groups = [row_group(work, draft) for work, draft in zip(plan, drafts, strict=True)]
        similarity = LayerSimilarity() if any(_wants_layer_set(work.sequence) for work in plan) else None
        logits = self.runner.forward(groups, observe=similarity.observe if similarity else None)
        if similarity:
            self._note_similarity(plan, groups, similarity)
        due = [(work.sequence, draft) for work, draft in zip(plan, drafts, strict=True) if work.reaches_end]
        verdicts = iter(judge(due, logits, self.config.acceptance))
        return [next(verdicts) if work.reaches_end else None for work in plan]

    def _note_similarity(self, plan: list[Work], groups: Seq[RowGroup], similarity: LayerSimilarity) -> None:
        """Add this chunk's layer similarity to each prompt's; at a prompt's end choose its layer set."""
        ranges, start = [], 0
        for group in groups:
            ranges.append((start, start + len(group.token_ids)))
            start += len(group.token_ids)
        for work, sums in zip(plan, similarity.sums(ranges), strict=True):
            sequence = work.sequence
            if not _wants_layer_set(sequence):
                continue
            sequence.similarity = sums if sequence.similarity is None else sequence.similarity + sums
            if work.reaches_end:
                ratio = self.config.skip_ratio
                ratio = skip_ratio(sums.shape[0]) if ratio is None else ratio
                sequence.layer_set = most_redundant(
                    sequence.similarity / sequence.num_prompt_tokens, ratio, self.config.protected_layers
                )

    def _commit(
        self, plan: list[Work], drafts: list[Draft], verdicts: Seq[Verdict | None], verify_seconds: float
    ) -> None:
        """Make the accepted tokens part of their sequences and emit them; end what is finished."""
        now = monotonic()
        self._serve_last([work.sequence for work in plan])
        only_decoding = not any(work.sequence.prefilling for work in plan)
        share = verify_seconds / len(plan)
        for work, draft, verdict in zip(plan, drafts, verdicts, strict=True):
            sequence = work.sequence
            assert sequence.extent is not None
            self._cache.commit(sequence.extent, work.num_tokens)
            if verdict is None:
                continue
            first = sequence.num_output_tokens
            text = append_until_stop(sequence, verdict.token_ids, self._eos_ids)
            committed = sequence.num_output_tokens - first
            self._cache.commit(sequence.extent, max(committed - 1, 0))
            if first:
                accepted = min(verdict.num_accepted, committed)
                sequence.note_round(len(draft), accepted, draft.seconds, share)
                if sequence.brake is not None and only_decoding:  # a prompt's chunk would make drafts look cheap
                    sequence.brake.note_round(accepted, draft.seconds, share)
            logprobs = verdict.logprobs[:committed]
            if committed:
                sequence.note_tokens(logprobs, now)
            error = None
            if verdict.broken and not sequence.finished:
                error = EngineFailure(f"the model's logits at position {len(sequence.tokens)} are no finite numbers")
                sequence.finish_reason = "error"
                text += sequence.text.flush()[0]
            self._emit(sequence, text, committed, logprobs, error)

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
            self._release(sequence)
        sequence.request.on_output(sequence.news(text, num_tokens, logprobs, error))

    def _end(self, sequence: Sequence, reason: str) -> None:
        """End a sequence from outside, cancelled or timeout; what was held back of its text goes out."""
        sequence.finish_reason = reason
        self._emit(sequence, sequence.text.flush()[0])

    def _open_sequences(self) -> list[Sequence]:
        """Everything not finished yet, mail that nobody looked at included."""
        for request in self._inbox.take().requests:
            self._waiting.append(self._start(request))
        return [*self._running, *self._waiting]

    def _fail_all(self, error: SwiftError) -> None:
        """Tell every open request; nothing else is touched, since the state may be anything now."""
        requests = [s.request for s in (*self._running, *self._waiting)] + self._inbox.take().requests
        for request in requests:
            request.on_output(Output(request.request_id, finish_reason="error", error=error))

    def _release(self, sequence: Sequence) -> None:
        if sequence.extent is None:
            self._waiting.remove(sequence)
            return
        self._cache.release(sequence.extent)
        sequence.extent = None
        self._running.remove(sequence)


def row_group(work: Work, draft: Draft) -> RowGroup:
    """A sequence's rows in the full pass: known tokens, then drafted ones; logits from the last known row on."""
    sequence = work.sequence
    assert sequence.extent is not None
    known = sequence.tokens[sequence.kv_len : sequence.kv_len + work.num_tokens]
    num_logits = len(draft) + 1 if work.reaches_end else 0
    return RowGroup([*known, *draft.token_ids], sequence.kv_len, sequence.extent.start, num_logits)


def _wants_layer_set(sequence: Sequence) -> bool:
    return sequence.layer_set is None and sequence.params.speculation != "off"
