"""What changed between two measurements: whether the step did, by how much, and which work, waiting and memory did."""

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.difference.unprofiled import differing, measured_clocks, unprofiled_change
from opscope.analysis.difference.work import DifferenceSide, MatchedWork, apportioned, per_step, work_changes
from opscope.analysis.idle.timeline import DeviceTimeline
from opscope.analysis.measured import Measured
from opscope.analysis.pictures.live_memory import LiveMemory, live_memory
from opscope.analysis.structure.step_work import WindowKind
from opscope.analysis.verdict.step_evidence import busiest
from opscope.base.text import or_unknown
from opscope.base.units import format_ns
from opscope.documents.difference import (
    ChangePart,
    ChangeVerdict,
    DiffBy,
    Gate,
    GroupChange,
    HostChange,
    MatchedBy,
    MemoryChange,
    MemoryPart,
    PairDiff,
    StepChange,
    UnprofiledChange,
    WorkChange,
)
from opscope.documents.verdict import CheckName, IdleCause
from opscope.measuring.verdicts import gate_of

# ---------------------------------------------------------------- peak memory


BEFORE_RECORDING: Final = "allocated before the recording"
_OUTSIDE: Final = "outside any operator"


def memory_change(before: Measured, after: Measured) -> MemoryChange | None:
    """Compare the peak memory of both sides, on the device that holds most; None where neither side knows any."""
    allocated = [one.record.memory.allocated_bytes if one.record else None for one in (before, after)]
    peaks = [_largest(one) for one in (before, after)]
    if not any(value is not None for value in (*allocated, *peaks)):
        return None
    return MemoryChange(
        before_bytes=allocated[0],
        after_bytes=allocated[1],
        recorded_before_bytes=None if peaks[0] is None else peaks[0].peak_bytes,
        recorded_after_bytes=None if peaks[1] is None else peaks[1].peak_bytes,
        parts=_parts(peaks[0], peaks[1]),
    )


def _largest(one: Measured) -> LiveMemory | None:
    analysis = one.analysis
    if not analysis.trace.allocations.height:
        return None
    result = live_memory(analysis.trace, analysis.links, analysis.origins)
    # A device counts before the host, however much that holds.
    return max(result, key=lambda memory: (memory.device is not None, memory.peak_bytes), default=None)


def _parts(before: LiveMemory | None, after: LiveMemory | None) -> tuple[MemoryPart, ...]:
    # Without addresses it is not known what was alive at a peak.
    if before is None or after is None or before.before_bytes is None or after.before_bytes is None:
        return ()
    sides = [_by_operator(memory) for memory in (before, after)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    parts = (
        MemoryPart(
            name=name, before_bytes=sides[0][name], after_bytes=sides[1][name],
            change_bytes=sides[1][name] - sides[0][name],
        )
        for name in names
    )  # fmt: skip
    return tuple(sorted(parts, key=lambda part: (-abs(part.change_bytes), part.name)))


def _by_operator(memory: LiveMemory) -> Counter[str]:
    results = Counter({BEFORE_RECORDING: memory.before_bytes or 0})
    for operator, size in memory.alive.select("operator", "bytes").iter_rows():
        results[operator or _OUTSIDE] += size
    return results


# ---------------------------------------------------------------- groups


# Per grouping: the column with the name, and those with device time and calls.
_COLUMNS = {
    DiffBy.KERNEL: ("name", "total_ns", "calls"),
    DiffBy.MODULE: ("module", "total_device_ns", "calls"),
    DiffBy.CATEGORY: ("category", "self_device_ns", "calls"),
}


def group_changes(
    before: Measured, after: Measured, by: DiffBy, steps: tuple[int, int]
) -> tuple[GroupChange, ...] | None:
    """Return what a recorded step runs of each kernel, module or category, the largest change first.

    Args:
        before: the measurement to compare with.
        after: the measurement whose changes are reported.
        by: what the groups are. Modules include those inside them, so these must not be added up.
        steps: the number of steps of each side, by which times and counts are divided.

    Returns:
        None where a side recorded no modules.
    """
    tables = _table(before, by), _table(after, by)
    if tables[0] is None or tables[1] is None:
        return None
    sides = [_by_name(table, by, count) for table, count in zip(tables, steps, strict=True) if table is not None]
    nothing = (Fraction(0), 0.0)
    results = []
    for name in dict.fromkeys((*sides[0], *sides[1])):
        (first, calls), (second, later) = sides[0].get(name, nothing), sides[1].get(name, nothing)
        results.append(
            GroupChange(
                name=name,
                before_ns=float(first),
                after_ns=float(second),
                change_ns=round(second - first),
                calls_before=calls,
                calls_after=later,
            )
        )
    return tuple(sorted(results, key=lambda one: (-abs(one.change_ns), one.name)))


def _table(one: Measured, by: DiffBy) -> pl.DataFrame | None:
    analysis = one.analysis
    match by:
        case DiffBy.KERNEL:
            return analysis.kernels.with_columns(pl.col("name").cast(pl.String))
        case DiffBy.CATEGORY:
            return analysis.categories
        case DiffBy.MODULE:
            return analysis.modules


def _by_name(table: pl.DataFrame, by: DiffBy, steps: int) -> dict[str, tuple[Fraction, float]]:
    name, time, calls = _COLUMNS[by]
    sums = table.group_by(name).agg(pl.col(time).sum(), pl.col(calls).sum())
    return {one: (per_step(ns, steps), count / steps) for one, ns, count in sums.select(name, time, calls).iter_rows()}


# ---------------------------------------------------------------- two traces


IDLE: Final = "idle"
RECORDING: Final = "less what recording adds"
SIDE_BY_SIDE: Final = "work of several streams at once"
OUTSIDE: Final = "work outside of the window"
OTHER_CPU: Final = "within operators, not their own: API calls, named ranges, threads at once"
NO_OPERATOR_CPU: Final = "no operator ran"
OPERATORS, API, REST = "operators' own time", "API calls", "all else, less what threads did at once"
_LISTED: Final = 50


def difference(
    name: str, before: Measured, after: Measured, fail_over: float | None = None, by: DiffBy | None = None
) -> PairDiff:
    """Compare two traces.

    Args:
        name: the name of the pair.
        before: the measurement to compare with.
        after: the measurement whose changes are reported.
        fail_over: how much longer the step may take, as a share (0.05 is 5 %); None for no gate.
        by: what work is grouped by beside operators; None for no such groups.
    """
    unprofiled = unprofiled_change(before, after)
    step = _step(before, after, unprofiled)
    steps = step.steps_before, step.steps_after
    # Of a side whose device was not recorded, it is unknown which kernels ran: that is not none.
    is_known = before.analysis.has_device_times and after.analysis.has_device_times
    kernels = group_changes(before, after, DiffBy.KERNEL, steps) if is_known else None
    return PairDiff(
        name=name,
        before=before.analysis.source.path,
        after=after.analysis.source.path,
        differing=tuple(differing(before, after)),
        unprofiled=unprofiled,
        step=step,
        host=_host(before, after),
        memory=memory_change(before, after),
        culprit=_culprit(step) if _names_one(unprofiled, before, after) else None,
        gate=None if fail_over is None else gate_of(unprofiled.ratio_low, unprofiled.ratio_high, fail_over),
        by=by,
        groups=kernels if by is DiffBy.KERNEL else None if by is None else group_changes(before, after, by, steps),
        kernels=kernels or (),
    )


def worst_gate(gates: list[Gate]) -> Gate:
    """Return the worst of some gates: a proven regression counts before missing results, these before open ones."""
    return next((gate for gate in (Gate.REGRESSION, Gate.INCOMPLETE, Gate.INCONCLUSIVE) if gate in gates), Gate.FINE)


def _steps(before: Measured, after: Measured) -> tuple[int, int, bool]:
    """Return the divisor of each side's times, and whether that gives times of one step."""
    if before.step_count and after.step_count:
        return before.step_count, after.step_count, True
    return 1, 1, False


def _step(before: Measured, after: Measured, unprofiled: UnprofiledChange) -> StepChange:
    both, (first, second, stepwise) = (before, after), _steps(before, after)
    on_device = [one.analysis.has_device_times for one in both]
    recorded = (_on_devices if all(on_device) else _on_cpu)(both, (first, second))
    times = (unprofiled.before, unprofiled.after)
    totals = recorded.windows
    # Times that cannot be compared are not subtracted; the recorded steps are taken apart instead.
    known = unprofiled.ratio is not None and unprofiled.verdict is not ChangeVerdict.UNKNOWN
    if stepwise and all(on_device) and known and times[0] is not None and times[1] is not None:
        totals = Fraction(times[0].ns), Fraction(times[1].ns)
    result = StepChange(
        unprofiled=totals is not recorded.windows,
        per_step=stepwise,
        steps_before=first,
        steps_after=second,
        measured_on="device" if all(on_device) else "cpu",
        device_before=recorded.devices[0],
        device_after=recorded.devices[1],
        before_ns=float(totals[0]),
        after_ns=float(totals[1]),
        change_ns=round(totals[1] - totals[0]),
        recorded_before_ns=float(recorded.windows[0]),
        recorded_after_ns=float(recorded.windows[1]),
        window=recorded.words,
    )
    if len(set(on_device)) > 1:
        return replace(result, reason="one of the two ran on a device, the other did not: their steps are other work")
    if recorded.doubt is not None and not result.unprofiled:
        return replace(result, reason=recorded.doubt)
    return _taken_apart(result, recorded, totals[1] - totals[0])


class _Recorded(Struct, frozen=True):
    """What the two recordings say of a step, before and after. Times are exact nanoseconds.

    Attributes:
        devices: the numbers of the devices; None on a CPU.
        windows: how long a step took.
        words: what kind of window that is.
        work: the changes of groups of calls.
        rest: the changes of the other parts, without the last one.
        last: the name of the part that takes what ``work`` and ``rest`` do not explain.
        causes: how idle time changed by cause; empty on a CPU, or where the windows cannot be compared.
        doubt: why the windows cannot be compared; None where they can.
    """

    devices: tuple[int | None, int | None]
    windows: tuple[Fraction, Fraction]
    words: str
    work: list[MatchedWork]
    rest: dict[str, Fraction]
    last: str
    causes: dict[str, Fraction]
    doubt: str | None = None


def _on_devices(both: tuple[Measured, Measured], steps: tuple[int, int]) -> _Recorded:
    lines = _same_device(both[0].analysis.devices, both[1].analysis.devices)
    before, after = (
        DifferenceSide.of_device(one.analysis, line.device, n, _clock(one))
        for one, line, n in zip(both, lines, steps, strict=True)
    )
    # Light passes count only if both sides have one: recording with names slows the host down more.
    light = all(one.timed is not one.analysis for one in both)
    timed = [_numbered(one.timed.devices, line) if light else line for one, line in zip(both, lines, strict=True)]
    idle = [line.idle.by_cause() for line in timed]
    doubt = _incomparable(timed, steps)
    launched = before.total_ns, after.total_ns
    return _Recorded(
        devices=(lines[0].device, lines[1].device),
        windows=_pair(timed, steps, lambda line: line.window.duration_ns),
        words=" and ".join(dict.fromkeys(str(line.window.kind) for line in timed)),
        work=work_changes(before, after),
        rest={
            SIDE_BY_SIDE: _change(lines, steps, lambda line: line.busy_ns - line.sum_ns),
            # What no step launched counts here too, as far as it lies within the window.
            OUTSIDE: _change(lines, steps, lambda line: line.sum_ns - line.outside_window_ns)
            - (per_step(launched[1], steps[1]) - per_step(launched[0], steps[0])),
        },
        last=IDLE,
        causes={}
        if doubt is not None
        else {
            str(cause): per_step(idle[1][cause], steps[1]) - per_step(idle[0][cause], steps[0]) for cause in IdleCause
        },
        doubt=doubt,
    )


def _same_device(
    before: Sequence[DeviceTimeline], after: Sequence[DeviceTimeline]
) -> tuple[DeviceTimeline, DeviceTimeline]:
    """Return the device to compare: of those on both sides the one that works most, else each side's busiest."""
    theirs = {line.device: line for line in after}
    common = [(line, theirs[line.device]) for line in before if line.device in theirs]
    if not common:
        return busiest(before), busiest(after)
    return max(common, key=lambda pair: sum(line.busy_in_window_ns for line in pair))


def _numbered(lines: Sequence[DeviceTimeline], like: DeviceTimeline) -> DeviceTimeline:
    return next((line for line in lines if line.device == like.device), like)


def _incomparable(lines: Sequence[DeviceTimeline], steps: tuple[int, int]) -> str | None:
    """Return why two windows, divided by their steps, cannot be compared; None where they can."""
    kinds = {line.window.kind for line in lines}
    if len(kinds) > 1:
        return f"the recorded steps are measured differently: one by its {' and one by its '.join(sorted(kinds))}"
    if kinds == {WindowKind.STEP_WORK} and steps[0] != steps[1]:
        return (
            "steps do not wait for their work, and the recordings have different numbers of them: the last one is "
            "shorter than a whole step"
        )
    return None


def _pair(
    lines: Sequence[DeviceTimeline], steps: tuple[int, int], value: Callable[[DeviceTimeline], int]
) -> tuple[Fraction, Fraction]:
    return per_step(value(lines[0]), steps[0]), per_step(value(lines[1]), steps[1])


def _change(
    lines: Sequence[DeviceTimeline], steps: tuple[int, int], value: Callable[[DeviceTimeline], int]
) -> Fraction:
    before, after = _pair(lines, steps, value)
    return after - before


def _clock(one: Measured) -> tuple[int, int, int] | None:
    clocks = measured_clocks(one)
    return None if clocks is None else (clocks.sm_mhz_min, clocks.sm_mhz_median, clocks.sm_mhz_max)


def _on_cpu(both: tuple[Measured, Measured], steps: tuple[int, int]) -> _Recorded:
    analyses = [one.analysis for one in both]
    before, after = (DifferenceSide.of_host(a, n) for a, n in zip(analyses, steps, strict=True))
    within = [per_step(a.operator_time_ns, n) for a, n in zip(analyses, steps, strict=True)]
    windows = [per_step(a.window.duration_ns, n) for a, n in zip(analyses, steps, strict=True)]
    return _Recorded(
        devices=(None, None),
        windows=(windows[0], windows[1]),
        words=" and ".join(dict.fromkeys(str(a.window.kind) for a in analyses)),
        work=work_changes(before, after),
        rest={OTHER_CPU: (within[1] - after.total) - (within[0] - before.total)},
        last=NO_OPERATOR_CPU,
        causes={},
    )


def _taken_apart(result: StepChange, recorded: _Recorded, change: Fraction) -> StepChange:
    """Divide the change of a step into parts; the last part takes what the others do not explain."""
    rest = dict(recorded.rest)
    rest[recorded.last] = change - sum((one.change for one in recorded.work), Fraction()) - sum(rest.values())
    # Rounded once, all parts together, so that they add up to the change: the work first, then the rest.
    whole = apportioned([one.change for one in recorded.work] + list(rest.values()), result.change_ns)
    count = len(recorded.work)
    rows = [one.document(ns) for one, ns in zip(recorded.work, whole[:count], strict=True)]
    rows.sort(key=lambda row: (-abs(row.change_ns), row.operator or "", row.inputs_before or ""))
    parts = tuple(ChangePart(name, ns) for name, ns in zip(rest, whole[count:], strict=True) if ns)
    return replace(
        result,
        work=tuple(rows),
        work_ns=sum(row.change_ns for row in rows),
        parts=parts,
        idle=_causes(recorded.causes, rest[recorded.last], whole[-1]),
    )


def _causes(causes: dict[str, Fraction], idle: Fraction, rounded: int) -> tuple[ChangePart, ...]:
    """Divide the change of idle time by cause. Causes are of recorded steps: what is left is due to recording."""
    if not causes:
        return ()
    every = {**causes, RECORDING: idle - sum(causes.values())}
    whole = apportioned(list(every.values()), rounded)
    return tuple(
        sorted(
            (ChangePart(name, ns) for name, ns in zip(every, whole, strict=True) if ns), key=lambda p: -abs(p.change_ns)
        )
    )


def _host(before: Measured, after: Measured) -> HostChange | None:
    """Return how the host's part of the step changed; None where a side recorded nothing of it."""
    first, second, _ = _steps(before, after)
    sides = [(before.analysis, first), (after.analysis, second)]
    if not all(a.window.duration_ns for a, _ in sides):
        return None
    windows = [per_step(a.window.duration_ns, n) for a, n in sides]
    own = [{name: per_step(ns, n) for name, ns in a.operators.select("name", "self_cpu_ns").iter_rows()}
           for a, n in sides]  # fmt: skip
    operators = [sum(times.values(), Fraction()) for times in own]
    calls = [per_step(int(a.trace.launches["duration_ns"].sum()), n) for a, n in sides]
    # Negative where threads that work at once have more time together than the window.
    rest = [window - ops - api for window, ops, api in zip(windows, operators, calls, strict=True)]
    change = round(windows[1] - windows[0])
    parts = {OPERATORS: operators, API: calls, REST: rest}
    whole = apportioned([pair[1] - pair[0] for pair in parts.values()], change)
    names = dict.fromkeys([*own[0], *own[1]])
    by_name = [ChangePart(name, round(own[1].get(name, Fraction()) - own[0].get(name, Fraction()))) for name in names]
    launches = [a.launches.api.count / n if a.launches.api else 0.0 for a, n in sides]
    return HostChange(
        launches_before=launches[0],
        launches_after=launches[1],
        before_ns=float(windows[0]),
        after_ns=float(windows[1]),
        change_ns=change,
        parts=tuple(ChangePart(name, ns) for name, ns in zip(parts, whole, strict=True)),
        operators=tuple(sorted((p for p in by_name if p.change_ns), key=lambda p: -abs(p.change_ns))[:_LISTED]),
    )


def _names_one(unprofiled: UnprofiledChange, before: Measured, after: Measured) -> bool:
    """Tell whether the recordings can say why a step is slower.

    It must be slower, no file may be damaged, and on a CPU the profiler's cost must not hide the reason.
    """
    spoiling = (CheckName.FILE_IS_VALID, CheckName.PROFILER_OVERHEAD)
    failed = any(
        one.trust.failed(name) is not None
        for one in (before, after)
        for name in (spoiling if not one.analysis.has_device_times else spoiling[:1])
    )
    return unprofiled.verdict is ChangeVerdict.SLOWER and not failed


def _culprit(step: StepChange) -> str | None:
    """Return what grew most, in words; None where the step did not grow, or no part did."""
    if step.change_ns <= 0:
        return None
    work = max(step.work, key=lambda row: row.change_ns, default=None)
    part = max(step.parts, key=lambda part: part.change_ns, default=None)
    if work is not None and work.change_ns > max(0, part.change_ns if part else 0):
        return f"{_named(work)}: {_why(work, step.measured_on)} (+{format_ns(work.change_ns)} a {_unit(step)})"
    if part is not None and part.change_ns > 0:
        return f"{part.name} (+{format_ns(part.change_ns)} a {_unit(step)})"
    return None


def _unit(step: StepChange) -> str:
    return "step" if step.per_step else "recording"


def _named(row: WorkChange) -> str:
    inputs = row.inputs_after or row.inputs_before
    name = or_unknown(row.renamed_to or row.operator, "work of no operator")
    return f"{name} {or_unknown(inputs)}" if inputs else name


def _why(row: WorkChange, measured_on: str) -> str:
    """Return what most of a group's growth is due to, in words."""
    if row.matched in (MatchedBy.GONE, MatchedBy.NEW):
        return "not there before" if row.matched is MatchedBy.NEW else "not there after"
    reasons = {
        f"{row.calls_after:.4g} calls instead of {row.calls_before:.4g}": row.calls_ns,
        "other inputs": row.inputs_ns,
        "more launches a call": row.launches_ns,
        "other kernels" if measured_on == "device" else "another operator": row.kernel_changed_ns,
        "the same kernels take longer" if measured_on == "device" else "it takes longer": row.same_kernel_ns,
        "at most the multiprocessors' clock": row.clocks_ns,
    }
    return max(reasons, key=lambda reason: reasons[reason])
