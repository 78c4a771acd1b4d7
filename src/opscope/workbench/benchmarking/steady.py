"""How long a call takes on the CPU while the machine runs at full speed, beside a yardstick in the same rounds.

What else runs changes a machine from moment to moment: a busy sibling of a core makes everything take one and a half
times as long, and a core that is taken away makes single calls much longer. So calls are measured in many short
bursts, together with a yardstick, a fixed piece of work. Only rounds count in which the yardstick ran at full speed.
Between two sessions, the yardstick says whether the machine itself was faster. On two shared cores with two busy
processes beside, medians of one function differed by up to 1.6 times from session to session, those of its fastest
rounds by up to 1.06, and ratios to a yardstick by up to 1.02.
"""

import gc
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Final

import torch

from opscope.base.threads import waited_for_cpu_ns
from opscope.base.units import NS_PER_MS, NS_PER_S, NS_PER_US
from opscope.documents.bench import Steady
from opscope.workbench.benchmarking.statistics import Interval, median_interval

_FULL_SPEED: Final = 1.05  # times the yardstick's fastest rounds; a busy sibling of the core makes it 1.3 to 1.6
_ALIKE: Final = 1.1  # by how much two calls of a round may differ; where they do, the machine changed within it
_FEWEST: Final = 6  # rounds whose median has an interval
_LONGEST: Final = 4  # times as long as asked, where calls are slow
_BURST_NS: Final = 2 * NS_PER_MS
_PAUSE_S: Final = 0.002  # after a pause, a process that waits for a core is preferred
_SLOW_NS: Final = NS_PER_MS  # of such calls, waiting for a core is asked for; asking takes some 20 us
_YARDSTICK_NS: Final = 20 * NS_PER_US  # at least, and a hundred times as long at most
_LOOKS: Final = 5
_SEVERAL: Final = 1.2  # times as much of the CPU as of the clock: more than one thread works


def steady_time(call: Callable[[], object], seconds: float) -> Steady | None:
    """Measure a call; None where the machine was never at full speed for long enough to tell.

    Args:
        call: works on the CPU, and is warm.
        seconds: how long to measure; slow calls take up to four times as long.
    """
    once, threads = _about(call)
    yardstick, repeats = _yardstick(once, threads)
    rounds = _rounds({"call": call, "again": call, "yardstick": yardstick}, once, seconds)
    return _told(rounds, repeats, threads)


def _about(call: Callable[[], object]) -> tuple[float, float]:
    """Return about how long a call takes, and how many threads work in it.

    Threads of an earlier call go on looking for work for some milliseconds, so the least of several looks counts.
    """
    looks = [_look(call) for _ in range(_LOOKS)]
    return median(once for once, _ in looks), min(threads for _, threads in looks)


def _look(call: Callable[[], object]) -> tuple[float, float]:
    durations: list[int] = []
    used, began = time.process_time_ns(), time.perf_counter_ns()
    while len(durations) < 3 or (time.perf_counter_ns() - began < 20 * NS_PER_MS and len(durations) < 50):
        start = time.perf_counter_ns()
        call()
        durations.append(time.perf_counter_ns() - start)
    return median(durations), (time.process_time_ns() - used) / max(1, time.perf_counter_ns() - began)


def _yardstick(once_ns: float, threads: float) -> tuple[Callable[[], object], int]:
    """Return a piece of work of about the same length, on as many threads, and how many pieces of one kind it is."""
    small, large = torch.ones(64, 64), torch.ones(1 << 18)
    value = large if threads > _SEVERAL else small

    def piece() -> object:
        return value * 1.0 + 1.0

    for _ in range(20):
        piece()
    durations = []
    for _ in range(51):
        start = time.perf_counter_ns()
        piece()
        durations.append(time.perf_counter_ns() - start)
    each = median(durations)
    repeats = max(1, round(min(max(once_ns, _YARDSTICK_NS), 100 * _YARDSTICK_NS) / each))

    def several() -> object:
        result = None
        for _ in range(repeats):
            result = piece()
        return result

    return several, repeats


_Round = dict[str, tuple[int, int]]  # per name how long it took, and how long of that it waited for a core


def _rounds(calls: dict[str, Callable[[], object]], once_ns: float, seconds: float) -> list[_Round]:
    """Measure rounds in random order, in bursts with pauses between them."""
    orders, rounds = random.Random(0), list[_Round]()
    began = time.perf_counter_ns()
    asks = once_ns >= _SLOW_NS
    collects = gc.isenabled()
    gc.disable()
    try:
        while True:
            spent = time.perf_counter_ns() - began
            enough = len(rounds) >= 2 * _FEWEST
            if (spent >= seconds * NS_PER_S and enough) or spent >= _LONGEST * seconds * NS_PER_S + NS_PER_S:
                return rounds
            time.sleep(_PAUSE_S)
            burst = time.perf_counter_ns()
            while time.perf_counter_ns() - burst < _BURST_NS:
                names = list(calls)
                orders.shuffle(names)
                rounds.append({name: _once(calls[name], asks=asks) for name in names})
    finally:
        if collects:
            gc.enable()


def _once(call: Callable[[], object], *, asks: bool) -> tuple[int, int]:
    waited = waited_for_cpu_ns() if asks else None
    start = time.perf_counter_ns()
    result = call()
    took = time.perf_counter_ns() - start
    del result
    until = waited_for_cpu_ns() if asks else None
    return took, 0 if waited is None or until is None else max(0, until - waited)


def _alike(one: int, other: int) -> bool:
    return max(one, other) <= _ALIKE * min(one, other)


def _told(rounds: list[_Round], repeats: int, threads: float) -> Steady | None:
    yardstick = [one["yardstick"][0] - one["yardstick"][1] for one in rounds]
    fastest = sorted(yardstick)[len(yardstick) // 100]
    fast = [one for one, took in zip(rounds, yardstick, strict=True) if took <= _FULL_SPEED * fastest]
    clean = [one for one in fast if _alike(one["call"][0], one["again"][0])]
    clean = clean if len(clean) >= _FEWEST else fast
    if len(clean) < _FEWEST:
        return None
    pieces = [(one["yardstick"][0] - one["yardstick"][1]) / repeats for one in clean]
    most = median_interval([float(one["call"][0]) for one in clean])
    least = median_interval([float(max(1, one["call"][0] - one["call"][1])) for one in clean])
    # One thread that waits does nothing else meanwhile; of several, nobody knows how much of it the call waited for.
    time_ns = Interval(least.median, least.low, most.high if threads > _SEVERAL else least.high, least.n)
    per_piece = median_interval(
        [(one["call"][0] - one["call"][1]) / piece for one, piece in zip(clean, pieces, strict=True)]
    )
    same = median_interval([one["again"][0] / one["call"][0] for one in clean if one["call"][0]])
    if None in (time_ns.low, time_ns.high, per_piece.low, per_piece.high, same.low, same.high):
        return None
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
