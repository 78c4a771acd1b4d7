"""A step takes what its throughput says: many are timed, with what the host waits for and what comes between them."""

import math
import random
import signal
import time
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.trust.step_time import step_time
from opscope.collect.script.clock import CycleClock
from opscope.documents.trace import StepTime
from opscope.record.capture import Benchmark, Between

MS = 1_000_000


def benchmark(wall_ns: list[int], **others: object) -> Benchmark:
    return Benchmark(warmup_steps=3, wall_ns=tuple(wall_ns), event_ns=None, clocks=None, synchronised=False, **others)  # type: ignore[arg-type]


def of(wall_ns: list[int], run_to_run: float | None = None, **others: object) -> StepTime:
    found = step_time(benchmark(wall_ns, **others), run_to_run)
    assert found is not None
    return found


def timed(cycles: list[int], **options: object) -> tuple[CycleClock, int]:
    """Let cycles of these durations pass until the clock says that it is enough; return the clock, and how many did."""
    clock, now = CycleClock(on_device=False, **options), 1  # type: ignore[arg-type]
    clock.start(now)
    for number, cycle in enumerate(cycles, start=1):
        now += cycle
        clock.cycle(now)
        if clock.enough and not clock.goes_on():
            return clock, number
    return clock, 0


# ---------------------------------------------------------------- how many are timed


@pytest.mark.parametrize(
    ("cycle_ns", "expected"),
    [
        (MS // 1000, 20_000),  # the most that are timed
        (1 * MS, 1_000),  # a second
        (10 * MS, 200),
        (400 * MS, 75),  # thirty seconds
        (20_000 * MS, 10),
    ],
)
def test_two_hundred_steps_or_half_a_minute_are_timed(cycle_ns: int, expected: int) -> None:
    assert timed([cycle_ns] * 20_000)[1] == expected


def test_a_second_or_two_are_enough_where_that_is_asked_for() -> None:
    assert timed([100 * MS] * 100, quick=True)[1] == 20
    assert timed([400 * MS] * 100, quick=True)[1] == 10


def test_steps_are_timed_until_queues_are_drained() -> None:
    filled, drained = [10 * MS + (number % 3) * MS for number in range(150)], [30 * MS] * 1_000
    clock, number = timed(filled + drained)
    assert number > 350
    assert set(clock.times().wall_ns) == {30 * MS}
    rising = [round(10 * MS * 1.005**number) for number in range(2_000)]  # never steady: the longest time ends it
    clock, number = timed(rising)
    assert 75_000 * MS <= sum(rising[:number]) < 90_000 * MS


def test_steps_are_timed_for_ten_seconds_where_stretches_of_them_differ() -> None:
    steady = [10 * MS, 11 * MS] * 1_000
    assert timed(steady)[1] == 200
    draw = random.Random(0)  # as on a host that others use
    wandering = [length for _ in range(40) for length in [draw.randrange(8 * MS, 12 * MS)] * 50]
    clock, number = timed(wandering)
    assert 10_000 * MS <= sum(clock.times().wall_ns) < 10_100 * MS
    assert timed(wandering, quick=True)[1] < 200
    settling = wandering[:250] + [10 * MS] * 2_000  # until the mean is known well enough
    assert 250 < timed(settling)[1] < number
    assert timed(wandering, most=300)[1] == 300


def test_what_comes_between_steps_is_kept_with_the_steps_that_lie_in_it() -> None:
    clock = CycleClock(on_device=False)
    clock.start(100, 0, 0, 0)
    clock.cycle(110, 1, 0, 0)
    clock.skip()
    clock.cycle(500, 3, 2, 300)  # an evaluation, and two boundaries of training in it
    clock.cycle(510, 4, 2, 300)
    clock.skip()
    clock.cycle(530, 5, 2, 300)
    assert clock.times().between == (Between(390, 2.0, True, 300), Between(20, 1.0, False))


def test_waits_are_those_of_their_own_step() -> None:
    waits = iter([(0, 0), (7, 0), (7, 0), (7, 3), (7, 3)])
    clock = CycleClock(on_device=False, waited=lambda: next(waits))
    clock.start(1)
    clock.cycle(101)
    clock.cycle(201)
    assert clock.times().data_ns == (7, 0)
    assert clock.times().collecting_ns == (0, 3)


# ---------------------------------------------------------------- what a step takes


def test_a_step_takes_what_its_throughput_says_bursts_included() -> None:
    step = of([70, 70, 70, 70, 330] * 40, data_ns=(0, 0, 0, 0, 260) * 40, collecting_ns=(0,) * 200)
    assert (step.ns, step.median_ns, step.data_ns, step.steps) == (122.0, 70.0, 52.0, 200)
    assert step.typical_ns == 70.0
    assert step.sentence == (
        "The median step takes 70 ns. In 40 of 200 steps (every 5th) the host waits for data, for 260 ns on average: "
        "42.6 % of the time."
    )


def test_a_regular_step_has_nothing_to_explain() -> None:
    step = of([100, 101, 99, 100] * 50)
    assert step.sentence is None
    assert (step.ns, step.typical_ns) == (100.0, 100.0)
    assert step.data_ns is None


def test_waits_in_each_step_and_of_groups_of_steps_are_said_as_such() -> None:
    assert of([100] * 20, data_ns=(40,) * 20).sentence == (
        "In each step the host waits for data for 40 ns: 40.0 % of the time."
    )
    grouped = of([100] * 20, data_ns=(80, 0) * 10, steps_each=4)
    assert grouped.sentence == "For 40.0 % of the time the host waits for data."
    assert grouped.steps == 80


def test_long_waits_and_short_ones_have_their_shares() -> None:
    """40 of 80 steps of 100 ns wait for 80 ns, the others for 10: 40 % of the time, and 45 % in all."""
    found = of([100] * 80, data_ns=(80, 10) * 40).sentence
    assert found == (
        "In 40 of 80 steps (every 2nd) the host waits for data, for 80 ns on average: 40.0 % of the time, and 45.0 % "
        "with shorter waits."
    )


def test_what_is_not_explained_is_said_too() -> None:
    assert of([100] * 180 + [1000] * 20).sentence == (
        "The median step takes 100 ns. 20 of 200 steps take 1.000 us on average: 52.6 % of the time; the cause is not "
        "known."
    )
    seventh = of(([100] * 6 + [5000]) * 28).sentence
    assert seventh is not None
    assert "28 of 196 steps (every 7th) take 5.000 us on average: 89.3 % of the time" in seventh
    nearly = of([100, 100, 900] * 10 + [100] + [100, 100, 900] * 10).sentence
    assert nearly is not None
    assert "(about every 3rd)" in nearly
    assert "The slowest 20 of 200 steps take" in (of([100] * 120 + [150] * 80).sentence or "")
    # One long step of 250 ns is not why the mean is 125 ns where the median is 100 ns.
    assert "The slowest 20 of 200 steps take 12.4 % of" in (of([100] * 101 + [150] * 98 + [250]).sentence or "")
    grouped = of([100] * 190 + [10_000] * 10, steps_each=10).sentence or ""
    assert "10 of 200 groups of 10 steps take 10.00 us a step on average" in grouped
    assert "1 of 200 steps takes 10.00 us: 33.4 % of the time" in (of([100] * 199 + [10_000]).sentence or "")


def test_what_recurs_between_steps_belongs_to_them_and_what_came_once_does_not() -> None:
    evaluations = (Between(700, 2.0, True, 500), Between(700, 2.0, True, 300))
    step = of([100] * 20, between=evaluations)
    assert step.ns == pytest.approx((20 * 100 + 1400) / 24)
    assert step.sentence is not None
    assert "Between the steps comes evaluation (2 times while they were timed): 29.4 % of the time." in step.sentence
    assert of([100] * 20, between=evaluations[:1]).ns == 100.0


def test_the_interval_is_by_blocks_of_consecutive_steps() -> None:
    # Two blocks in ten are slow. Means 100 and 200: mean 120, standard deviation 42.16; 2.262 of it over sqrt(10).
    step = of([100] * 160 + [200] * 40)
    half = 2.262 * 42.1637 / math.sqrt(10)
    assert (step.low_ns, step.high_ns) == (pytest.approx(100.0), pytest.approx(120 + half, rel=1e-4))
    wide = of([100] * 160 + [200] * 40, run_to_run=0.1)
    assert wide.high_ns == pytest.approx((120 + half) * 1.05, rel=1e-4)
    few = of([100] * 5)
    assert (few.low_ns, few.high_ns) == (None, None)
    assert step_time(benchmark([]), None) is None


@given(st.lists(st.integers(1, 10**9), min_size=6, max_size=300), st.integers(0, 3))
def test_the_mean_lies_in_its_interval(samples: list[int], between: int) -> None:
    step = of(samples, between=tuple(Between(ns, 1.0) for _, ns in zip(range(between), count(5), strict=False)))
    assert step.low_ns is not None
    assert step.high_ns is not None
    assert step.low_ns <= step.ns * (1 + 1e-9)
    assert step.ns <= step.high_ns * (1 + 1e-9)


# ---------------------------------------------------------------- on a device, whose marks are played


class Mark:
    """A mark on a device's stream: when the device passes it, in milliseconds."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def elapsed_time(self, other: "Mark") -> float:
        return other.at_ms - self.at_ms


def test_an_evaluation_is_counted_once_where_the_host_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host issues a step in 1 ms, for which the device needs 10, and waits for it only in evaluations of 100 ms."""
    device_ms, host_ns = 0.0, 1
    monkeypatch.setattr("opscope.collect.script.clock._marked", lambda: Mark(device_ms))
    monkeypatch.setattr("opscope.collect.script.clock.synchronize_if_used", lambda: None)
    clock = CycleClock(on_device=True)
    clock.start(host_ns)
    evaluations = 0
    for step in range(1, 201):
        device_ms, host_ns = device_ms + 10, host_ns + MS
        clock.cycle(host_ns, step, evaluations)
        if step % 50 == 49:
            clock.skip()
            device_ms += 110  # the step that is interrupted, and the evaluation
            host_ns = round(device_ms * MS)
            evaluations += 1
            clock.start(host_ns, step + 1, evaluations)
    timed_steps = clock.times()
    assert set(timed_steps.wall_ns) == {10 * MS}
    assert timed_steps.between == (Between(110 * MS, 1.0, True),) * 4
    found = of(list(timed_steps.wall_ns), between=timed_steps.between)
    assert found.ns == pytest.approx((200 * 10 + 4 * 110) * MS / 204)


@pytest.mark.torch
def test_a_recording_begins_once_cuda_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from types import SimpleNamespace

    from opscope.collect.script import running
    from opscope.collect.script.phases import Phase

    ready: list[bool] = []
    asked: list[bool] = []
    monkeypatch.setattr(torch._C, "_cuda_init", lambda: None, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(ready))
    monkeypatch.setattr(running, "_ASKS_S", 60.0)
    before = signal.getsignal(running._SIGNAL)
    watcher = SimpleNamespace(active=True, phase=Phase.WATCH, asked_by_watchdog=lambda: asked.append(bool(ready)))
    try:
        running.listen_to_watchdog(watcher)  # type: ignore[arg-type]
        running.start_watchdog(watcher, at_first_use=True)  # type: ignore[arg-type]
        torch._C._cuda_init()
        time.sleep(0.2)
        assert asked == []  # only the CPU would be recorded now
        ready.append(True)
        until = time.monotonic() + 10
        while not asked and time.monotonic() < until:
            time.sleep(0.01)
        assert asked == [True]
    finally:
        watcher.active = False
        signal.signal(running._SIGNAL, before)
