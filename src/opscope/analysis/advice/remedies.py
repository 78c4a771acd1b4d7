"""Changes of the replayed steps that several rules advise, and what they save in words."""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from opscope.analysis.advice.context import Apply, Context
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.arrays import Intervals, numbers_in
from opscope.analysis.structure.nesting import Ints
from opscope.base.units import format_ns, format_share
from opscope.documents.findings import SavingRange, StepBasis
from opscope.documents.limits import LimitRow
from opscope.knowledge.categories import Category
from opscope.knowledge.devices import Assumed, reach_of

# ---------------------------------------------------------------- savings in words


_WORDS: Final = {
    StepBasis.RECORDING: "recording",
    StepBasis.ESTIMATED: "step without the profiler",
    StepBasis.ESTIMATED_RECORDING: "recording without the profiler",
}
_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
NOTHING_SURE: Final = 0.01  # of the highest saving: a lowest saving below this is not printed


def _rounded_down(value: float) -> str:
    """Return a number of three digits that is not more than it is: no saving is to look larger than its step."""
    if value <= 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(value)))
    return (
        f"{math.floor(value * 10**digits + 1e-6) / 10**digits:.{digits}f}".rstrip("0").rstrip(".")
        if digits
        else f"{math.floor(value):.0f}"
    )


def saving_span(saving: SavingRange) -> str:
    """Return a saving in a few characters, such as ``0.33 to 2.63 ms``; empty where nothing is saved."""
    if not saving.high:
        return ""
    scale, unit = next((one for one in _UNITS if saving.high >= one[0]), _UNITS[-1])
    low, high = (_rounded_down(value / scale) for value in (saving.low, saving.high))
    if saving.low < NOTHING_SURE * saving.high:
        return f"up to {high} {unit}"
    return f"about {high} {unit}" if low == high else f"{low} to {high} {unit}"


def saving_text(saving: SavingRange, of_step_ns: float, of_step: StepBasis) -> str:
    """Return what a finding could save, as a share first.

    Args:
        saving: the range, in nanoseconds.
        of_step_ns: how long the step or recording is, in nanoseconds.
        of_step: which of these it is.

    Returns:
        Words such as "4.8 % to 50.7 % of the step (381.3 us to 3.999 ms)"; empty where nothing is saved.
    """
    low, high = saving.low, saving.high
    if not high:
        return ""
    whole = _WORDS.get(of_step, "step")
    most = format_share(high, of_step_ns)
    if low < NOTHING_SURE * high:
        return f"up to {most} of the {whole} ({format_ns(high)})"
    least = format_share(low, of_step_ns)
    if least == most:
        return f"about {most} of the {whole} ({format_ns(high)})"
    return f"{least} to {most} of the {whole} ({format_ns(low)} to {format_ns(high)})"


# ---------------------------------------------------------------- remedies


_TF32: Final = ("tf32", "fp32")


def reach_kind(row: LimitRow, precision: str | None) -> str:
    """Return which table of `opscope.knowledge.devices` tells what a product reaches at a precision."""
    what = "convolution" if row.category == str(Category.CONVOLUTION) else "product"
    return f"{what}_{'tf32' if precision in _TF32 else '16'}"


def reaches(kind: str) -> str:
    """Return what a kind of work is assumed to reach, in words."""
    low, likely, high = (reach_of(kind, assumed).share for assumed in Assumed)
    return f"{likely:.0%} ({low:.0%} to {high:.0%}) of the limit, less for short calls"


def taking(context: Context, rows: Sequence[LimitRow], time_ns: Callable[[LimitRow, Assumed], float]) -> Apply:
    """Return the change that lets calls take some time each, but never more than they do.

    Args:
        context: what rules look at.
        rows: the calls.
        time_ns: how long one takes, in nanoseconds.
    """

    def apply(edit: Edit, assumed: Assumed) -> int:
        result = 0
        for row in rows:
            if row.call_ns:
                result += edit.scale(context.activities_of([row]), min(1.0, time_ns(row, assumed) / row.call_ns))
        return result

    return apply


def reaching(
    context: Context, rows: Sequence[LimitRow], ideal_ns: Callable[[LimitRow], float | None], kind: str | None = None
) -> Apply:
    """Return the change that lets calls take what well-chosen kernels take; calls without a limit stay as they are.

    Args:
        context: what rules look at.
        rows: the calls.
        ideal_ns: the limit of one, in nanoseconds.
        kind: which table tells what they reach; None for that of products in their precision.
    """

    def time(row: LimitRow, assumed: Assumed) -> float:
        limit = ideal_ns(row)
        if limit is None:
            return row.call_ns
        return reach_of(kind or reach_kind(row, row.precision), assumed).time_ns(limit)

    return taking(context, rows, time)


def scaled(activities: Ints, factors: tuple[float, float, float]) -> Apply:
    """Return the change that multiplies the time of activities, by a factor for low, likely and high; 0 removes them.

    What is removed goes with its launch, and with the operators that launch nothing else.
    """

    def apply(edit: Edit, assumed: Assumed) -> int:
        factor = factors[assumed]
        return edit.scale(activities, factor) if factor else edit.remove_work(activities)

    return apply


def without_host(stretches: Sequence[tuple[int, Intervals]], shares: tuple[float, float, float]) -> Apply:
    """Return the change that takes stretches of threads out, or a share of them for low, likely and high."""

    def apply(edit: Edit, assumed: Assumed) -> int:
        result = 0
        for thread, spans in stretches:
            result += edit.host_time(thread, spans) > 0
            edit.remove_host(thread, spans, shares[assumed])
        return result

    return apply


def without_waits(calls: Ints) -> Apply:
    """Return the change that lets calls return without waiting for the device."""
    return lambda edit, _: edit.cut_waits(calls)


def without_calls(calls: Ints) -> Apply:
    """Return the change that leaves calls out, and what they wait for."""
    return lambda edit, _: edit.remove_calls(calls)


def all_of(*changes: Apply) -> Apply:
    """Return several changes as one."""
    return lambda edit, assumed: sum(change(edit, assumed) for change in changes)


def by_thread(thread: Ints, start: Ints, end: Ints) -> list[tuple[int, Intervals]]:
    """Return stretches of time as pairs of a thread and its stretches."""
    return [
        (number, Intervals.union_of(start[thread == number], end[thread == number]))
        for number in np.unique(thread).tolist()
    ]


def work_around(context: Context, pieces: Ints, without: Intervals) -> list[tuple[int, Intervals]]:
    """Return the stretches of the host's other work in which some pieces of idle time lie, by thread.

    Args:
        context: what rules look at.
        pieces: the pieces of idle time.
        without: what is left out of the stretches.
    """
    idle, result = context.waits.idle, []
    thread = idle.thread[pieces]
    for number in numbers_in(thread[thread >= 0]).tolist():
        own = pieces[thread == number]
        works = context.host.of(number).works
        around = np.zeros(len(works), np.bool_)
        around[works.overlaps(Intervals(idle.pieces.start[own], idle.pieces.end[own]))[0]] = True
        works = works.chosen(around)
        rest = without.gaps(int(works.start[0]), int(works.end[-1])) if len(works) else works
        result.append((number, works.within(rest)))
    return result
