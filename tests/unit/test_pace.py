"""How much goes into a step, by what passes cost."""

from __future__ import annotations

import pytest

from swift_backend.pace import LONGEST_STALL, LONGEST_STEP, STALL, MeasuredPace
from swift_backend.params import SamplingParams
from swift_backend.pass_times import PassTimes
from swift_backend.scheduler import LEAST_CHUNK, Work, plan_step
from swift_backend.sequence import Extent, Request, Sequence
from swift_backend.speculation.batch_limit import BatchLimit
from swift_backend.speculation.cost_model import CostModel, RowCosts

COSTS = [
    PassTimes(fixed=0.012, per_row=0.001, per_key=0.000002),  # a small model on a CPU
    PassTimes(fixed=0.020, per_row=0.00005, per_key=0.0000001),  # passes that hardly feel their rows
    PassTimes(fixed=0.001, per_row=0.010, per_key=0.00002),  # every row is dear
]
CHEAP = PassTimes(fixed=0.020, per_row=0.0001, per_key=1e-9)


def costs() -> CostModel:
    """Four layers; every part takes 1 ms for a row, and 0.1 ms for each one more."""
    part = RowCosts((1, 11), (0.001, 0.002))
    return CostModel(4, part, part, part, part, per_key=1e-6)


def pace(times: PassTimes) -> MeasuredPace:
    return MeasuredPace(times, BatchLimit(times, draft_cost=0.5), costs())


def sequence(prompt: int, kv_len: int = 0, output: int = 0, speculation: str = "off") -> Sequence:
    request = Request("r", list(range(prompt)), SamplingParams(speculation=speculation), print)
    made = Sequence(request, 256, seed=0, extent=Extent(0, 8192, kv_len))
    made.tokens += range(output)
    return made


def decoding(count: int, context: int = 300) -> list[Sequence]:
    return [sequence(context - 1, kv_len=context - 1, output=1) for _ in range(count)]


def seconds(times: PassTimes, plan: list[Work]) -> float:
    rows = sum(work.num_tokens for work in plan)
    return times.seconds(rows, sum(work.sequence.kv_len + i + 1 for work in plan for i in range(work.num_tokens)))


def prefill(times: PassTimes, running: list[Sequence], prompt: Sequence) -> list[tuple[int, float]]:
    """(chunk, seconds of the step) until the prompt is through."""
    steps = []
    while prompt.kv_len < prompt.num_prompt_tokens:
        plan = plan_step([prompt, *running], 512, 5, pace(times))
        [work] = [one for one in plan if one.sequence is prompt]
        steps.append((work.num_tokens, seconds(times, plan)))
        assert prompt.extent
        prompt.extent.length += work.num_tokens
    return steps


@pytest.mark.parametrize("times", COSTS)
def test_a_long_prompt_makes_no_step_longer_than_agreed(times: PassTimes) -> None:
    """4,000 tokens beside 8 streams: each gap stays under STALL times their own, apart from the least chunk."""
    running = decoding(8)
    alone = seconds(times, plan_step(running, 512, 5, pace(times)))
    steps = prefill(times, running, sequence(4000))
    assert sum(chunk for chunk, _ in steps) == 4000
    assert all(took <= STALL * alone * (1 + 1e-9) for chunk, took in steps if chunk > LEAST_CHUNK)
    assert all(chunk >= LEAST_CHUNK for chunk, _ in steps[:-1])


def test_the_time_that_is_there_is_used() -> None:
    """One token more would be too much: a prompt must not crawl because somebody decodes."""
    times, running = COSTS[0], decoding(8)
    alone = seconds(times, plan_step(running, 512, 5, pace(times)))
    [(chunk, took), *_] = prefill(times, running, sequence(4000))
    assert took <= STALL * alone < took + times.per_row + (chunk + 1) * times.per_key
    assert chunk == 35


def test_many_prompts_may_hold_up_a_few_streams_longer() -> None:
    """One stream beside 20 prompts: small steps would cost the 20 more than they spare the one."""
    times, alone = COSTS[0], decoding(1)
    usual = seconds(times, plan_step(alone, 512, 5, pace(times)))
    for prompts, stall in ((1, STALL), (20, LONGEST_STALL)):
        plan = plan_step([*alone, *(sequence(10) for _ in range(prompts - 1)), sequence(4000)], 512, 5, pace(times))
        assert stall * usual * 0.95 < seconds(times, plan) <= stall * usual


def test_few_prompts_hold_up_nobody_longer() -> None:
    """Eight streams, and as many prompts: the bound is the usual one."""
    times, running = COSTS[0], decoding(8)
    usual = seconds(times, plan_step(running, 512, 5, pace(times)))
    plan = plan_step([*running, *(sequence(4000) for _ in range(8))], 512, 5, pace(times))
    assert seconds(times, plan) <= STALL * usual


def test_no_stream_waits_for_prompts_longer_than_for_a_step_without_streams() -> None:
    """Where a token takes 0.15 s, four times that is too long; a slow model keeps its usual bound."""
    for times in (PassTimes(0.15, 0.0005, 1e-9), PassTimes(0.4, 0.0005, 1e-9)):
        usual = seconds(times, plan_step(decoding(1), 512, 5, pace(times)))
        plan = plan_step([*decoding(1), *(sequence(4000) for _ in range(9))], 512, 5, pace(times))
        assert seconds(times, plan) <= max(LONGEST_STEP, STALL * usual)


def test_dear_rows_leave_the_least_chunk() -> None:
    """By the deepest rows even that is dear; the prompt moves on all the same."""
    times = PassTimes(fixed=0.001, per_row=0.001, per_key=0.00001)
    steps = prefill(times, decoding(1, context=10), sequence(1000))
    assert {chunk for chunk, _ in steps} == {LEAST_CHUNK}


def test_where_nobody_decodes_only_the_longest_step_limits() -> None:
    """What a cancelled or a new request waits for."""
    assert [chunk for chunk, _ in prefill(CHEAP, [], sequence(1200))] == [512, 512, 176]
    dear = COSTS[2]
    steps = prefill(dear, [], sequence(200))
    assert steps[0][0] == 47
    assert all(took <= LONGEST_STEP < took + dear.per_row + 200 * dear.per_key for _, took in steps[:-1])


def test_a_second_prompt_gets_what_the_first_left() -> None:
    times, running = COSTS[0], decoding(8)
    first, second = sequence(20), sequence(4000)
    plan = plan_step([*running, first, second], 512, 5, pace(times))
    assert [work.num_tokens for work in plan[8:]] == [20, 16]
    assert seconds(times, plan) <= STALL * seconds(times, plan[:8])


def test_a_first_prompt_that_looks_far_back_leaves_nothing() -> None:
    """Its least chunk alone, 4,000 tokens deep, takes more than the time that there is."""
    running = decoding(8)
    plan = plan_step([*running, sequence(4020, kv_len=4000), sequence(4000)], 512, 5, pace(COSTS[0]))
    assert [work.num_tokens for work in plan[8:]] == [LEAST_CHUNK]


def test_drafts_are_limited_by_the_batch() -> None:
    """Two rows in a pass that is all rows: no draft; in one that is nearly free: the longest."""
    assert pace(PassTimes(1e-6, 0.01, 1e-9)).draft_limit(decoding(2), [], 2, 5) == 0
    assert pace(CHEAP).draft_limit(decoding(2), [], 2, 5) == 5
    assert pace(PassTimes(1e-6, 0.01, 1e-9)).draft_limit(decoding(1), [], 1, 5) == 5


def test_drafts_must_beat_the_prompts_that_wait_for_them() -> None:
    """Alone, a stream may draft; a draft of one token takes as long as 20 tokens of a prompt."""
    times = PassTimes(0.02, 0.0005, 1e-9)
    chunk = Work(sequence(300), 200, 0)
    assert pace(times).draft_limit(decoding(1), [], 1, 5) == 5
    assert pace(times).draft_limit(decoding(1), [chunk], 1, 5) == 0
    assert pace(times).draft_limit(decoding(4), [chunk], 4, 5) == 0
    assert pace(times).draft_limit(decoding(4), [], 4, 5) > 0


def test_drafts_are_limited_by_the_context_too() -> None:
    """Rows are cheap by themselves, but each of them looks at 4,000 keys."""
    times = PassTimes(0.01, 1e-5, 1e-6)
    far = [sequence(4000, kv_len=4000, output=1) for _ in range(8)]
    assert pace(times).draft_limit(decoding(8), [], 8, 5) == 5
    assert pace(times).draft_limit(far, [], 8, 5) == 0


def test_a_step_is_noted_with_its_rows_and_keys() -> None:
    """Two rows of a decoding sequence (one drafted), and 10 of a prompt from position 100 on."""
    noted: list[tuple[int, int, float]] = []

    class Noting(PassTimes):
        def note(self, rows: int, keys: int, seconds: float) -> None:
            noted.append((rows, keys, seconds))

    times = Noting(0.01, 0.001, 0.0)
    plan = [Work(sequence(9, kv_len=9, output=1), 1, 5), Work(sequence(300, kv_len=100), 10, 0)]
    model = costs()
    expected = model.seconds(12, 1065 / 12, logit_rows=2)
    MeasuredPace(times, BatchLimit(times, 0.5), model).note_step(plan, drafted=1, seconds=0.3)
    assert noted == [(12, 10 + 1055, 0.3)]
    told = costs()
    told.note(0.3, 12, 1065 / 12, logit_rows=2)
    assert model == told and model.seconds(12, 1065 / 12, logit_rows=2) > expected
