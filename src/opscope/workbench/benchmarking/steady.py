"""Measures how long a call takes on the CPU while the machine runs at full speed, beside a yardstick.

Other processes change a machine's speed from moment to moment: a busy sibling of a core makes everything take one and a
half times as long, and a core that is taken away makes single calls much longer. So calls are measured in many short
bursts, in rounds together with a yardstick, which is a fixed piece of work. Only rounds in which the yardstick ran at
full speed count. Between two sessions, the yardstick tells whether the machine itself was faster. On two shared cores
beside two busy processes, medians of one function differed by up to 1.6 times from session to session, those of its
fastest rounds by up to 1.06, and ratios to a yardstick by up to 1.02.
"""

import gc
import random
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter_ns, process_time_ns, sleep
from typing import Final

import torch

from opscope.base.processes import waited_for_cpu_ns
from opscope.base.units import NS_PER_MS, NS_PER_S, NS_PER_US
from opscope.documents.bench import Steady
from opscope.measuring.clock import EventTimer, time_once
from opscope.measuring.rounds import Calls, Interval, Prepared, median_interval
from opscope.record.capture import Benchmark
from opscope.workbench.benchmarking.instruments import ClockSampler

# ---------------------------------------------------------------- steps without a profiler


_WARMUP_STEPS = 3
_WARMUP_SECONDS = 0.3  # long enough for a GPU to leave its idle clocks
_MIN_STEPS = 6  # the fewest samples whose median has a 95 % interval
_ENOUGH_STEPS = 200
_ENOUGH_SECONDS = 0.5  # 200 steps of a few microseconds say little
_MAX_STEPS = 20_000
_MAX_SECONDS = 3.0
_PROGRESS_SECONDS = 0.1


def benchmark(step: Callable[[], object], device: torch.device, progress: Callable[[float], None]) -> Benchmark:
    """Time steps without a profiler.

    Timing ends after 200 steps and half a second, after three seconds, or after 20,000 steps, but not before six steps.
    Each step is synchronised, so steps do not overlap. Caches stay as the step before left them (warm L2).

    Args:
        step: does the work once.
        device: where the work runs.
        progress: called with the fraction done, 0 to 1.
    """
    progress(0.0)
    warmup = _warm_up(step, device)
    forgetting = partial(_forgetting, step)
    timer = EventTimer(device) if device.type == "cuda" else None
    wall: list[int] = []
    events: list[int] = []
    with ClockSampler(device) as sampler:
        waited = waited_for_cpu_ns()
        began = reported = time.perf_counter()
        while not _enough(len(wall), (now := time.perf_counter()) - began):
            if now - reported > _PROGRESS_SECONDS:
                progress(min(1.0, (now - began) / _MAX_SECONDS))
                reported = now
            if timer is None:
                wall.append(time_once(forgetting, device))
            else:
                wall.append(time_once(timer.around(step), device))
                events.append(timer.elapsed_ns())
        waited_until = waited_for_cpu_ns()
    return Benchmark(
        warmup_steps=warmup,
        wall_ns=tuple(wall),
        event_ns=tuple(events) if timer else None,
        clocks=sampler.clocks,
        clocks_reason=sampler.reason,
        waited_for_cpu_ns=None if waited is None or waited_until is None else max(0, waited_until - waited),
    )


def _forgetting(step: Callable[[], object]) -> None:
    """Take a step; to free what it returns, such as a loss with its graph, is a part of it."""
    step()


def _enough(steps: int, seconds: float) -> bool:
    if steps < _MIN_STEPS:
        return False
    return (steps >= _ENOUGH_STEPS and seconds >= _ENOUGH_SECONDS) or steps >= _MAX_STEPS or seconds >= _MAX_SECONDS


def _warm_up(step: Callable[[], object], device: torch.device) -> int:
    began, count = time.perf_counter(), 0
    while count < _WARMUP_STEPS or time.perf_counter() - began < _WARMUP_SECONDS:
        time_once(step, device)
        count += 1
    return count


# ---------------------------------------------------------------- steady steps


_FULL_SPEED: Final = 1.05  # times the yardstick's fastest rounds; a busy sibling of the core makes it 1.3 to 1.6
_ALIKE: Final = 1.1  # if two calls of a round differ by more than this factor, the machine changed within the round
_FEWEST: Final = 6  # rounds whose median has an interval
_LONGEST: Final = 4  # times as long as asked is measured if calls are slow
_BURST_NS: Final = 2 * NS_PER_MS
_PAUSE_S: Final = 0.002  # after a pause, a process that waits for a core is preferred
_SLOW_NS: Final = NS_PER_MS  # of calls at least this slow, waiting for a core is noted; reading it takes some 20 us
_YARDSTICK_NS: Final = 20 * NS_PER_US  # the least length of the yardstick; the most is a hundred times that
_LOOKS: Final = 5
_SEVERAL: Final = 1.2  # with more than this CPU time per time of the clock, more than one thread works


def steady_time(call: Callable[[], object], seconds: float, before: Callable[[], None] = lambda: None) -> Steady | None:
    """Measure a call beside a yardstick.

    Args:
        call: works on the CPU, and is warm.
        seconds: how long to measure; slow calls take up to four times as long, and a second more.
        before: called before each call, outside of its time.

    Returns:
        The time at full speed; None if the machine was not at full speed for long enough to tell.
    """
    once, threads = _about(call)
    yardstick, repeats = _yardstick(once, threads)
    calls = Prepared({"call": call, "again": call, "yardstick": yardstick}, lambda _: before())
    rounds = _rounds(calls, once, seconds)
    return _told(rounds, repeats, threads)


def _about(call: Callable[[], object]) -> tuple[float, float]:
    """Return about how long a call takes in nanoseconds, and how many threads work in it.

    Threads of an earlier call go on looking for work for some milliseconds, so the least of several looks counts.
    """
    looks = [_look(call) for _ in range(_LOOKS)]
    return median(once for once, _ in looks), min(threads for _, threads in looks)


# The CPU time of all threads over the clock's time is how many threads work at once.
def _look(call: Callable[[], object]) -> tuple[float, float]:
    durations: list[int] = []
    used, began = process_time_ns(), perf_counter_ns()
    while len(durations) < 3 or (perf_counter_ns() - began < 20 * NS_PER_MS and len(durations) < 50):
        start = perf_counter_ns()
        call()
        durations.append(perf_counter_ns() - start)
    return median(durations), (process_time_ns() - used) / max(1, perf_counter_ns() - began)


def _yardstick(once_ns: float, threads: float) -> tuple[Callable[[], object], int]:
    """Return the yardstick and the number of equal pieces that it is made of.

    Args:
        once_ns: how long the call takes; the yardstick takes about as long.
        threads: how many threads work in the call; the yardstick works on one, or on several as well.
    """
    # PyTorch works on a small tensor with one thread, and on a large one with several.
    small, large = torch.ones(64, 64), torch.ones(1 << 18)
    value = large if threads > _SEVERAL else small

    def piece() -> object:
        return value * 1.0 + 1.0

    for _ in range(20):
        piece()
    durations = []
    for _ in range(51):
        start = perf_counter_ns()
        piece()
        durations.append(perf_counter_ns() - start)
    each = median(durations)
    repeats = max(1, round(min(max(once_ns, _YARDSTICK_NS), 100 * _YARDSTICK_NS) / each))

    def several() -> object:
        result = None
        for _ in range(repeats):
            result = piece()
        return result

    return several, repeats


_Round = dict[str, tuple[int, int]]  # per name, how long it took, and how much of that it waited for a core; in ns


def _rounds(calls: Calls, once_ns: float, seconds: float) -> list[_Round]:
    """Measure rounds in random order, in bursts with pauses between them."""
    orders, rounds = random.Random(0), list[_Round]()
    began = perf_counter_ns()
    asks = once_ns >= _SLOW_NS
    # A garbage collection in the midst of a call would be counted as its time.
    collects = gc.isenabled()
    gc.disable()
    try:
        while True:
            spent = perf_counter_ns() - began
            enough = len(rounds) >= 2 * _FEWEST
            if (spent >= seconds * NS_PER_S and enough) or spent >= _LONGEST * seconds * NS_PER_S + NS_PER_S:
                return rounds
            sleep(_PAUSE_S)
            burst = perf_counter_ns()
            while perf_counter_ns() - burst < _BURST_NS:
                names = list(calls)
                orders.shuffle(names)
                rounds.append({name: _once(calls[name], asks=asks) for name in names})
    finally:
        if collects:
            gc.enable()


def _once(call: Callable[[], object], *, asks: bool) -> tuple[int, int]:
    waited = waited_for_cpu_ns() if asks else None
    start = perf_counter_ns()
    result = call()
    took = perf_counter_ns() - start
    del result
    until = waited_for_cpu_ns() if asks else None
    return took, 0 if waited is None or until is None else max(0, until - waited)


def _alike(one: int, other: int) -> bool:
    return max(one, other) <= _ALIKE * min(one, other)


def _told(rounds: list[_Round], repeats: int, threads: float) -> Steady | None:
    yardstick = [one["yardstick"][0] - one["yardstick"][1] for one in rounds]
    fastest = sorted(yardstick)[len(yardstick) // 100]  # the first percentile, not the one fastest of many
    fast = [one for one, took in zip(rounds, yardstick, strict=True) if took <= _FULL_SPEED * fastest]
    clean = [one for one in fast if _alike(one["call"][0], one["again"][0])]
    clean = clean if len(clean) >= _FEWEST else fast
    if len(clean) < _FEWEST:
        return None
    pieces = [(one["yardstick"][0] - one["yardstick"][1]) / repeats for one in clean]
    # The call takes no longer than by the clock, and no less than without the time that its threads waited.
    most = median_interval([float(one["call"][0]) for one in clean])
    least = median_interval([float(max(1, one["call"][0] - one["call"][1])) for one in clean])
    # While a single thread waits for a core, its call stands still. Of several threads, others may go on, so it is
    # unknown how much of their waiting the call itself waited for.
    time_ns = Interval(least.median, least.low, most.high if threads > _SEVERAL else least.high, least.n)
    per_piece = median_interval(
        [(one["call"][0] - one["call"][1]) / piece for one, piece in zip(clean, pieces, strict=True)]
    )
    same = median_interval([one["again"][0] / one["call"][0] for one in clean if one["call"][0]])
    if None in (time_ns.low, time_ns.high, per_piece.low, per_piece.high, same.low, same.high):
        return None
    # What widens the time upwards widens the pieces as well.
    stretch = (time_ns.high or 0.0) / (least.high or 1.0)
    return Steady(
        ns=time_ns.median,
        ci_low=time_ns.low or 0.0,
        ci_high=time_ns.high or 0.0,
        pieces=per_piece.median,
        pieces_low=per_piece.low or 0.0,
        pieces_high=(per_piece.high or 0.0) * stretch,
        piece_ns=median(pieces),
        same_low=same.low or 0.0,
        same_high=same.high or 0.0,
        rounds=len(clean),
        of_rounds=len(rounds),
        several_threads=threads > _SEVERAL,
    )
