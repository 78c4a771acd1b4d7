"""The trust checks, one function each. Every check has a sentence for the good case too."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.costs.limits import is_over_limit, over_limit
from opscope.analysis.idle.steps import module_loading, operator_time_on_host
from opscope.analysis.idle.timeline import TOLERATED_OUTSIDE, DeviceTimeline
from opscope.analysis.structure.api_masks import calls_of, calls_that, names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of
from opscope.analysis.structure.launches import LaunchSummary
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.analysis.structure.step_work import Window, WindowKind, activities_launched_outside_steps, window_of
from opscope.analysis.structure.streams import NO_DEVICE
from opscope.analysis.trust.plausible import Implausible
from opscope.analysis.trust.step_time import Steadiness
from opscope.base.parts import Losses
from opscope.base.text import or_unknown
from opscope.base.units import NS_PER_US, format_ns, format_share
from opscope.documents.limits import LimitRow
from opscope.documents.verdict import Check, CheckName, Trust, Verdict
from opscope.knowledge.api_calls import ApiKind, is_profilers_own
from opscope.readers.formats import format_named
from opscope.trace.model import Trace, TraceSource

# Up to this share of the device sum a defect leaves totals usable and is only a warning.
_TOLERATED_SHARE = 0.05
# Kernels that are launched early on purpose begin a little before their predecessor ends, which is harmless.
_USUAL_OVERLAP = 0.01
# By how many percent profiled steps may take longer than unprofiled ones; only host times suffer, not device times.
_TOLERATED_OVERHEAD = 20.0
_EXCESSIVE_OVERHEAD = 100.0
# Runs of one program differed by up to 7 % on two shared cores, by 1.5 % on an H200 (docs/diff.md).
_WANDERS = 0.1
_STILL_CHANGES = 0.05
# Shares of the steps' duration: a kernel's own housekeeping stays far below the first.
_TOLERATED_WAIT = 0.05
_EXCESSIVE_WAIT = 0.25
_LEAST_COVERED = 0.5  # of the host's window, by operators
# If this many records all begin and end on a whole microsecond, they were rounded.
_MANY_RECORDS = 50
_CATEGORIES_SHOWN = 5
_PAUSE_NS = 50_000  # a host that launches does so again long before
_PAUSE_IN_REPLAY_NS = 100_000  # nodes of a graph follow each other within microseconds
_SHORT_NS = 10_000  # one microsecond is a tenth of this
# Choices: kernels of one name and grid differ by less, as those that wait for other ranks do.
_LIKES_OF_THE_LONGEST = 20
_TIMES_THE_OTHERS = 1_000


class CheckInput(Struct, frozen=True):
    """What the checks look at.

    Attributes:
        trace: the trace, without implausible records.
        links, launches, timelines: what was computed from it.
        implausible: the records that were taken out before.
        expect_device_work: whether the workload ran on a GPU with its activities collected; None where that is only
            known from the trace's own launch calls.
    """

    trace: Trace
    links: Links
    launches: LaunchSummary
    timelines: Sequence[DeviceTimeline]
    implausible: Implausible
    expect_device_work: bool | None


def check_trace(evidence: CheckInput, losses: Losses) -> Trust:
    """Run every check that needs only the trace.

    Args:
        evidence: what they look at.
        losses: notes the checks that fail to be made.
    """
    return Trust.of(_with_failed_before(made(_checks(evidence), losses), evidence.trace.source))


def made(checks: Iterable[tuple[str, Callable[[], Check | None]]], losses: Losses) -> tuple[Check, ...]:
    """Make checks; one that fails to be made costs no other one.

    Args:
        checks: of each what it is about, and the function that makes it; None where it does not apply.
        losses: notes those that failed.
    """
    result = (losses.part(f"the check of {about}", check, lambda: None) for about, check in checks)
    return tuple(check for check in result if check is not None)


def check_parts(losses: Losses) -> Check | None:
    """Say which parts of an analysis failed; None where none did."""
    lost = losses.found
    if not lost:
        return None
    parts = "; ".join(f"{loss.part} ({or_unknown(loss.reason)})" for loss in lost)
    sentence = f"Left out, as computing it failed: {parts}. That is a fault of opscope's; opscope --debug raises it."
    return Check(CheckName.PARTS_COMPUTED, Verdict.WARN, len(lost), sentence)


def _with_failed_before(checks: tuple[Check, ...], source: TraceSource) -> tuple[Check, ...]:
    """Add the checks that failed when the trace was exported, if its events no longer show that."""
    before = {
        name: Check(name, Verdict.FAIL, 1, source.failed_checks[name])
        for name in CheckName
        if name in source.failed_checks and not any(c.name is name and c.verdict is Verdict.FAIL for c in checks)
    }
    return tuple(before.pop(check.name, check) for check in checks) + tuple(before.values())


def _checks(evidence: CheckInput) -> Iterator[tuple[str, Callable[[], Check | None]]]:
    trace, links = evidence.trace, evidence.links
    yield "whether anything was recorded", lambda: _anything(evidence)
    yield "the file", lambda: check_file(trace.source)
    yield "what the recording says of itself", lambda: check_recording(trace.source)
    yield "durations", lambda: _impossible_durations(trace, evidence.implausible)
    yield "self times", lambda: _self_times(links)
    yield "processes", lambda: _one_process(trace)
    yield "the resolution of times", lambda: _time_resolution(trace, links)
    yield "devices", lambda: _devices_understood(trace)
    if not trace.activities.height:
        yield "the host's time", lambda: _host_time_covered(trace, links)
        return
    busy_ns = sum(timeline.busy_ns for timeline in evidence.timelines)
    queued = cache(lambda: queued_before(trace, links))
    yield "launches", lambda: _launch_recorded(trace, links, queued())
    yield "operators", lambda: _operator_recorded(trace, links)
    yield "links", lambda: _links_recorded(trace, links)
    yield "launches without activity", lambda: _launches_without_activity(evidence, busy_ns)
    yield "launches outside of steps", lambda: _launched_outside_steps(trace, links)
    yield "work outside of the window", lambda: _outside_window(trace, queued(), evidence.timelines)
    yield "clocks", lambda: _clocks_agree(trace.source)
    yield "streams", lambda: _stream_overlaps(trace)
    yield "correlations", lambda: _repeated_correlations(trace, links)
    yield "waits between streams", lambda: _waits_recorded(trace)
    yield "cold launches", lambda: _cold_launches(trace)
    yield "interruptions by the profiler", lambda: _profiler_interruptions(trace)
    yield "replays of graphs", lambda: _graph_replays(trace, links, evidence.timelines)


def check_recording(source: TraceSource) -> Check:
    """Judge by what a recording says of itself: which records were lost, and when nothing was recorded."""
    name = CheckName.RECORDING_COMPLETE
    if source.dropped_records:
        sentence = (
            f"{source.dropped_records:,} records were lost while recording: counts and times are too small. "
            + " ".join(source.not_recorded)
        )
        return Check(name, Verdict.FAIL, source.dropped_records, sentence.rstrip())
    if source.not_recorded:
        return Check(name, Verdict.WARN, len(source.not_recorded), " ".join(source.not_recorded))
    return Check(name, Verdict.PASS, 0, "The recording does not say that it lacks anything.")


def check_overhead(percent: float, *, has_device: bool) -> Check:
    """Judge by how much longer profiled steps took than unprofiled ones.

    Args:
        percent: the difference of the medians, in percent of the unprofiled one.
        has_device: whether device times were recorded; else all that is reported are host times, which suffer.
    """
    more = "more" if percent >= 0 else "less"
    result = f"The median profiled step took {abs(percent):.1f} % {more} than the median unprofiled one"
    if percent < -_TOLERATED_OVERHEAD:
        sentence = f"{result}: other steps were recorded than timed, or the machine was busy while they were timed."
        return Check(CheckName.PROFILER_OVERHEAD, Verdict.WARN, 0, sentence)
    if percent <= _TOLERATED_OVERHEAD:
        return Check(CheckName.PROFILER_OVERHEAD, Verdict.PASS, 0, f"{result}.")
    if has_device:
        verdict = Verdict.WARN if percent > _EXCESSIVE_OVERHEAD else Verdict.PASS
        sentence = f"{result}: CPU times and idle times are too large by that; device times are not affected."
        return Check(CheckName.PROFILER_OVERHEAD, verdict, 0, sentence)
    verdict = Verdict.FAIL if percent > _EXCESSIVE_OVERHEAD else Verdict.WARN
    sentence = (
        f"{result}: the CPU times of the operators contain what the profiler cost, not evenly spread. Believe the "
        "unprofiled step time; read the operators' times as upper limits."
    )
    return Check(CheckName.PROFILER_OVERHEAD, verdict, 0, sentence)


def check_limits(rows: Sequence[LimitRow]) -> Check:
    """Judge the models of costs and the peaks by whether calls were faster than these allow."""
    name, whole = CheckName.WITHIN_LIMITS, sum(row.device_ns for row in rows)
    names, time = over_limit(rows), sum(row.device_ns for row in rows if is_over_limit(row))
    if not names:
        return Check(name, Verdict.PASS, 0, "No call was faster than its limit.", 0, "device", 0.0, "device sum")
    result = f"{', '.join(map(or_unknown, names[:3]))}{', ...' if len(names) > 3 else ''}"
    sentence = (
        f"Calls that took {format_ns(time)} ({format_share(time, whole)} of the device sum) were faster than the "
        f"device allows ({result}): a model of what they do, or a peak, is wrong, and so are their limits."
    )
    verdict = Verdict.FAIL if time > _TOLERATED_SHARE * whole else Verdict.WARN
    return Check(name, verdict, len(names), sentence, time, "device", time / whole if whole else None, "device sum")


def check_cpu_contention(waited_ns: int, wall_ns: int) -> Check:
    """Judge unprofiled steps by how long their process waited for a CPU core.

    Args:
        waited_ns: time in which the process's threads were ready to run but had no core, added up over the threads.
        wall_ns: the duration of all steps.
    """
    name, share = CheckName.CPU_CONTENTION, waited_ns / wall_ns if wall_ns else 0.0
    result = f"While the unprofiled steps were timed, threads waited {format_share(waited_ns, wall_ns)} of the time"
    if share <= _TOLERATED_WAIT:
        return Check(name, Verdict.PASS, 0, f"{result} for a CPU core.", waited_ns, "host")
    sentence = (
        f"{result} for a CPU core, added up over them: something else was running, or there are more threads than "
        "cores. The step times and the throughput are those of a busy machine; measure again on a quiet one."
    )
    verdict = Verdict.FAIL if share > _EXCESSIVE_WAIT else Verdict.WARN
    return Check(name, verdict, 0, sentence, waited_ns, "host")


def check_same_steps(wall_ns: float, differs: str | None) -> Check | None:
    """Judge whether the unprofiled steps can be steps like the recorded ones.

    Args:
        wall_ns: how long an unprofiled step takes.
        differs: why it cannot be like those, as the end of a sentence; None where it can.
    """
    if differs is None:
        return None
    sentence = f"Shares and savings refer to recorded steps. An unprofiled step of {format_ns(wall_ns)} {differs}."
    return Check(CheckName.SAME_STEPS, Verdict.WARN, 0, sentence)


def check_steady(steps: Steadiness, busy_ns: float | None) -> Check:
    """Judge whether consecutive unprofiled steps took equally long.

    Args:
        steps: how long they took, one after the other.
        busy_ns: how long the device works per step, which does not depend on the host; None where not known.
    """
    times = f"{format_ns(steps.low_ns)} to {format_ns(steps.high_ns)}"
    device = "" if busy_ns is None else f" The device itself works {format_ns(busy_ns)} in a step."
    results = []
    if steps.wanders > 1 + _WANDERS:
        results.append(
            f"The speed of the steps wandered by {steps.wanders:.2f} times while they were timed (medians of eight "
            f"parts: {times}): one figure does not say how long a step takes"
        )
    if steps.change is not None and abs(steps.change) > _STILL_CHANGES:
        rises = "longer and longer" if steps.change > 0 else "less and less"
        results.append(
            f"The steps took {rises} while they were timed ({100 * steps.change:+.1f} % from the first to the last)"
        )
    if not results:
        return Check(
            CheckName.STEADY_STEPS, Verdict.PASS, 0, f"The unprofiled steps took about the same time: {times}."
        )
    return Check(CheckName.STEADY_STEPS, Verdict.WARN, 0, f"{'. '.join(results)}.{device}")


def _host_time_covered(trace: Trace, links: Links) -> Check:
    name, window = CheckName.HOST_TIME_COVERED, window_of(trace)
    covered, whole = operator_time_on_host(links, window), window.duration_ns
    share = f"Operators account for {format_share(covered, whole)} of the {window.kind}"
    if not whole or covered >= _LEAST_COVERED * whole:
        return Check(name, Verdict.PASS, 0, f"{share}.", covered, "host")
    sentence = (
        f"{share}. The rest was not recorded: Python between operators, waiting, input and output, and operators on "
        "threads that the workload starts itself, which torch.profiler does not see before PyTorch 2.13. Shares of the "
        "operators' time say nothing about it."
    )
    return Check(name, Verdict.WARN, 0, sentence, whole - covered, "host")


def _anything(evidence: CheckInput) -> Check:
    name = CheckName.DEVICE_WORK_RECORDED
    activities, operators = evidence.trace.activities.height, evidence.trace.operators.height
    expected = evidence.expect_device_work
    if expected is None:
        # Calls that launch work show that a device was used.
        expected = evidence.launches.api is not None
    if expected and not activities:
        sentence = (
            "No kernel, memcpy or memset was recorded of a workload that uses a GPU: its device times are unknown, not "
            "0. Another profiler may hold CUPTI, or the workload did nothing on the GPU."
        )
        return Check(name, Verdict.FAIL, 0, sentence)
    if not activities and not operators and not format_named(evidence.trace.source.format).has_operators:
        return Check(name, Verdict.PASS, 0, "The process launched nothing: it called CUDA without work for a device.")
    if not activities and not operators:
        sentence = (
            "The trace records no operator and no device activity: the program ended before it ran any, or ran them on "
            "threads of its own, which are not recorded."
        )
        return Check(name, Verdict.FAIL, 0, sentence)
    sentence = f"{operators:,} operator calls and {activities:,} device activities were recorded."
    return Check(name, Verdict.PASS, activities, sentence)


def check_file(source: TraceSource) -> Check:
    """Judge whether a trace's file could be read as a whole."""
    count = source.replaced_bytes + source.odd_events + source.unreadable_bytes
    if source.damage is not None:
        sentence = (
            f"The file is incomplete: {source.damage}. What is whole was read; the rest is missing in every figure."
        )
        return Check(CheckName.FILE_IS_VALID, Verdict.FAIL, max(count, 1), sentence)
    if not count:
        return Check(CheckName.FILE_IS_VALID, Verdict.PASS, 0, "The trace file is valid.")
    results = []
    if source.unreadable_bytes:
        results.append(f"{source.unreadable_bytes:,} bytes that cannot be read, which are left out")
    if source.replaced_bytes:
        results.append(f"{source.replaced_bytes:,} bytes that no JSON may hold, read as question marks")
    if source.odd_events:
        results.append(f"{source.odd_events:,} events with times that cannot be true, which are left out")
    lost = source.unreadable_bytes > _TOLERATED_SHARE * source.size_bytes
    verdict = Verdict.FAIL if lost else Verdict.WARN
    return Check(CheckName.FILE_IS_VALID, verdict, count, f"The trace file holds {' and '.join(results)}.")


def _impossible_durations(trace: Trace, implausible: Implausible) -> Check:
    name, count = CheckName.IMPOSSIBLE_DURATIONS, implausible.activities + implausible.host_records
    if count:
        sentence = (
            f"{implausible.activities:,} device activities and {implausible.host_records:,} host records have times "
            "that cannot be: durations that are negative, beyond all bounds, or longer than a host that waited for "
            "them; a begin before the launch or an end after a wait for them; or successors on their stream that end "
            f"before they do (the activities claim {format_ns(implausible.activities_claimed_ns)}). They are left out "
            "of every figure, so the figures are too low by what those records really took."
        )
        time_ns = implausible.activities_claimed_ns
        time_ns = time_ns if implausible.claims_hold else min(time_ns, 0)
        return Check(name, Verdict.FAIL, count, sentence, time_ns, "device")
    kernels = column(trace.activities, "duration_ns")[(trace.activities["kind"] == "kernel").to_numpy()]
    zero = int((kernels == 0).sum())
    if (unlike := _unlike_its_likes(trace)) is not None:
        return unlike
    if not zero or _is_rounded(trace.activities):  # in whole microseconds, 0 is less than one
        return Check(name, Verdict.PASS, 0, "No duration is negative, zero, or longer than a host that waited for it.")
    sentence = (
        f"{zero:,} of {len(kernels):,} kernels have a duration of 0, which no kernel has: the figures are too low by "
        "what they really took."
    )
    verdict = Verdict.FAIL if zero > _TOLERATED_SHARE * len(kernels) else Verdict.WARN
    return Check(name, verdict, zero, sentence, 0, "device")


def _unlike_its_likes(trace: Trace) -> Check | None:
    """Doubt one activity that is most of the device sum and takes many times as long as all others of its kind."""
    activities = trace.activities
    if activities.height <= _LIKES_OF_THE_LONGEST:
        return None
    longest = activities.row(int(activities["duration_ns"].arg_max() or 0), named=True)
    if longest["kind"] != "kernel":  # copies of one name differ by their sizes
        return None
    likes = activities.filter((pl.col("name") == longest["name"]) & pl.col("grid").eq_missing(longest["grid"]))
    duration, whole = longest["duration_ns"], int(activities["duration_ns"].sum())
    middle = float(likes["duration_ns"].median() or 0)  # type: ignore[arg-type]
    if likes.height <= _LIKES_OF_THE_LONGEST or duration < _TIMES_THE_OTHERS * middle or 2 * duration < whole:
        return None
    sentence = (
        f"One activity of {format_ns(duration)} is {format_share(duration / whole, 1)} of the device sum; the median "
        f"of {likes.height:,} of its name and grid is {format_ns(middle)}. If its times are wrong, so are busy time "
        "and all sums."
    )
    return Check(
        CheckName.IMPOSSIBLE_DURATIONS, Verdict.WARN, 1, sentence, duration, "device", duration / whole, "device sum"
    )


def _clocks_agree(source: TraceSource) -> Check | None:
    if CheckName.IDLE_CAUSES_KNOWN in source.failed_checks:
        return None
    sentence = (
        "As far as launches and synchronizations tell, no activity begins before its launch or ends after a wait for "
        "it, by more than 10 us."
    )
    return Check(CheckName.CLOCKS_AGREE, Verdict.PASS, 0, sentence)


def _one_process(trace: Trace) -> Check:
    """Judge whether a trace is of one process: ids count per process, so a merged file may link across processes."""
    # Only threads with records count: a file may list threads of processes that it has no records of.
    used = pl.concat([trace.operators["thread"], trace.launches["thread"]]).unique()
    processes = {trace.threads[number][0] for number in used}
    if len(processes) <= 1:
        return Check(CheckName.ONE_PROCESS, Verdict.PASS, 0, "The trace is of one process.")
    sentence = (
        f"The file holds {len(processes)} processes. Ids that two of them use link nothing, and their steps are mixed: "
        "analyse the trace of each process by itself."
    )
    return Check(CheckName.ONE_PROCESS, Verdict.FAIL, len(processes), sentence)


def _time_resolution(trace: Trace, links: Links) -> Check:
    """Judge whether times are whole microseconds: Kineto cut activities' durations, and operators' start and end."""
    name, records = CheckName.TIME_RESOLUTION, trace.activities.height + trace.operators.height
    if records < _MANY_RECORDS or not (_is_rounded(trace.activities) and _is_rounded(trace.operators)):
        return Check(name, Verdict.PASS, 0, "Nothing suggests that times were rounded to microseconds.")
    rounded = "Times are whole microseconds, as PyTorch 2.3 and older record them"
    if count := trace.activities.height:
        # A duration that was cut off lacks half a microsecond on average.
        missing, result = count * NS_PER_US // 2, int(trace.activities["duration_ns"].sum())
        whole = missing + result
        sentence = (
            f"{rounded}: every device activity is too short by up to 1 us, half of that on average, so the sum of all "
            f"{count:,} is too small by about {format_ns(missing)} ({format_share(missing, whole)}). "
            "Short kernels suffer most."
        )
        verdict = Verdict.WARN if missing > _TOLERATED_SHARE * whole else Verdict.PASS
        return Check(name, verdict, count, sentence, missing, "device")
    own = np.maximum(links.operator_self_ns, 0)
    short = column(trace.operators, "duration_ns") < _SHORT_NS
    time, whole = int(own[short].sum()), int(own.sum())
    sentence = (
        f"{rounded}: every CPU time is wrong by up to 1 us, and {int(short.sum()):,} of {len(short):,} operator calls "
        f"take less than 10 us ({format_share(time, whole)} of the self CPU times). Sums over many calls hardly suffer."
    )
    verdict = Verdict.WARN if time > _TOLERATED_SHARE * whole else Verdict.PASS
    return Check(name, verdict, int(short.sum()), sentence, time, "host")


def _devices_understood(trace: Trace) -> Check:
    """Judge whether slices are of categories that no reader knows: these may be the work of a device."""
    name, result = CheckName.DEVICES_UNDERSTOOD, trace.source.not_understood
    if not result:
        return Check(name, Verdict.PASS, 0, "Slices of every category were understood.")
    shown = sorted(result.items(), key=lambda item: (-item[1], item[0]))
    names = ", ".join(f"{or_unknown(category)} ({count:,})" for category, count in shown[:_CATEGORIES_SHOWN])
    more = f" and {len(shown) - _CATEGORIES_SHOWN} more" if len(shown) > _CATEGORIES_SHOWN else ""
    sentence = (
        f"{sum(result.values()):,} slices are of categories that opscope does not understand: {names}{more}. If they "
        "are the work of a device, it is missing in every figure."
    )
    verdict = Verdict.WARN if trace.activities.height else Verdict.FAIL
    return Check(name, verdict, sum(result.values()), sentence)


def _is_rounded(table: pl.DataFrame) -> bool:
    start, duration = (table[name].to_numpy() for name in ("start_ns", "duration_ns"))
    return not ((start % NS_PER_US).any() or (duration % NS_PER_US).any())


def _self_times(links: Links) -> Check:
    calls = int(((links.operator_self_ns < 0) | links.operator_crosses).sum())
    count = calls + links.crossing_annotations
    if not count:
        return Check(CheckName.OPERATORS_NEST, Verdict.PASS, 0, "Operators nest within their threads.")
    sentence = (
        f"{calls:,} operator calls and {links.crossing_annotations:,} annotations overlap others of their thread "
        "without nesting (asynchronous, or rounded times): what ran in the overlap is counted with the innermost one "
        "around it, and their self CPU times are uncertain."
    )
    return Check(CheckName.OPERATORS_NEST, Verdict.WARN, count, sentence)


def _timed(trace: Trace, name: CheckName, rows: Ints, problem: str, fine: str) -> Check:
    """Build a check that weighs the device time of some activities.

    Args:
        trace: the trace.
        name: the name of the check.
        rows: the activities concerned.
        problem: what is wrong with them, as the end of a sentence.
        fine: the sentence where there are none.
    """
    durations = trace.activities["duration_ns"].to_numpy()
    time, whole = int(durations[rows].sum()), int(durations.sum())
    share = time / whole if whole else 0.0
    if not len(rows):
        return Check(name, Verdict.PASS, 0, fine, 0, "device", 0.0, "device sum")
    verdict = Verdict.WARN if share <= _TOLERATED_SHARE else Verdict.FAIL
    count = f"{len(rows):,} of {trace.activities.height:,} activities"
    amount = f"{count} ({format_ns(time)}, {format_share(time, whole)} of the device sum)"
    return Check(name, verdict, len(rows), f"{amount} {problem}", time, "device", share, "device sum")


def _at_most_warn(check: Check) -> Check:
    """Limit a check to a warning: the records are complete, only not where most figures look for them."""
    return replace(check, verdict=Verdict.WARN) if check.count else check


def _launch_recorded(trace: Trace, links: Links, early: Bools) -> Check:
    missing = (links.activity_launch < 0) & (links.activity_operator < 0)
    lost = _timed(
        trace,
        CheckName.LAUNCH_RECORDED,
        np.flatnonzero(missing & ~early),
        "have no recorded launch: it fell outside the recording, or its record was lost. They count as busy and are "
        "listed as unlinked; no operator is charged.",
        "Every activity has its launch, or the id of the operator that launched it.",
    )
    # Work that was queued before is only reported if no launch was lost.
    if lost.count or not early.any():
        return lost
    queued = _timed(
        trace,
        CheckName.LAUNCH_RECORDED,
        np.flatnonzero(early),
        "ran before anything that was launched in the recording: they were queued when it began. They count as busy "
        "and are listed as unlinked; no operator is charged. A torch.cuda.synchronize() before the recording keeps "
        "them out.",
        "",
    )
    return _at_most_warn(queued)


def queued_before(trace: Trace, links: Links) -> Bools:
    """Tell per activity whether it was queued when the recording began.

    Then it has no recorded launch, nothing with a recorded launch ran before it on its device, and the device did not
    pause before it.
    """
    device, start, end = (
        column(trace.activities, "device"),
        column(trace.activities, "start_ns"),
        end_of(trace.activities),
    )
    missing = (links.activity_launch < 0) & (links.activity_operator < 0)
    result = np.zeros(len(start), np.bool_)
    for number in np.unique(device[missing]).tolist():
        own = device == number
        known = start[own & ~missing]
        if not len(known):
            continue
        rows = np.flatnonzero(own & missing & (start < known.min()))
        rows = rows[np.argsort(start[rows], kind="stable")]
        done = np.maximum.accumulate(end[rows]) if len(rows) else end[rows]
        # Queued work follows without a pause: what comes after one was launched during the recording.
        pause = np.flatnonzero(start[rows[1:]] - done[:-1] > _PAUSE_NS)
        result[rows[: pause[0] + 1] if len(pause) else rows] = True
    return result


def _operator_recorded(trace: Trace, links: Links) -> Check:
    if not format_named(trace.source.format).has_operators and not trace.operators.height:
        sentence = "The recording is of CUDA's activities alone: there are no operators that they could belong to."
        return Check(CheckName.OPERATOR_RECORDED, Verdict.PASS, 0, sentence)
    rows = np.flatnonzero((links.activity_launch >= 0) & (links.activity_operator < 0))
    check = _timed(
        trace,
        CheckName.OPERATOR_RECORDED,
        rows,
        "were launched outside any operator (graph replays, kernels launched from Python); they are unlinked."
        f"{_of_silent_thread(trace, links.activity_launch[rows])}",
        "Every launch lies in an operator.",
    )
    return _at_most_warn(check)


def _of_silent_thread(trace: Trace, launches: Ints) -> str:
    """Return which thread made most of some launches, if no operator was recorded on it; empty where one was."""
    replays = calls_of(trace.launches, ApiKind.GRAPH_LAUNCH)
    launches = launches[~replays[launches]]
    if not len(launches) or not trace.operators.height:
        return ""
    threads, counts = np.unique(column(trace.launches, "thread")[launches], return_counts=True)
    thread, count = int(threads[counts.argmax()]), int(counts.max())
    if 2 * count <= len(launches) or thread in trace.operators["thread"].unique().to_list():
        return ""
    which = or_unknown(" ".join(trace.threads[thread]).replace('"', ""))
    return (
        f" {count:,} launches were made by the thread {which}, of which no operator was recorded: the profiler records "
        "operators of the thread that starts it."
    )


def _links_recorded(trace: Trace, links: Links) -> Check:
    check = _timed(
        trace,
        CheckName.LINKS_RECORDED,
        np.flatnonzero(links.inferred),
        "have no id of their launch, or their launch has no operator on its thread: they are linked by ids that they "
        "share, or by time, which is likely and not recorded.",
        "All links follow from recorded ids and threads.",
    )
    return _at_most_warn(check)


def _launches_without_activity(evidence: CheckInput, busy_ns: int) -> Check:
    launches = evidence.launches
    name, count = CheckName.LAUNCHES_WITHOUT_ACTIVITY, launches.without_activity
    if count is None:
        sentence = (
            "No activity carries the id of its launch, as in early ROCm traces: whether every launch has its activity, "
            "and what the host's delays were, cannot be told. Operators are found by their own ids."
        )
        return Check(name, Verdict.WARN, 0, sentence)
    if not count:
        return Check(name, Verdict.PASS, 0, "Every launch has its activity.")
    if count <= _left_out(evidence):
        return Check(name, Verdict.PASS, count, "Every launch has its activity, but for impossible ones, left out.")
    moves, hidden = launches.moves_without_activity, launches.hidden_ns
    if count == moves and launches.moves_recorded:
        sentence = (
            f"{count:,} copying or filling calls have no activity, and every other launch has one: of zero bytes they "
            "launch nothing."
        )
        return Check(name, Verdict.PASS, count, sentence)
    total = launches.api.count if launches.api else count
    share = format_share(hidden, busy_ns + hidden)
    at_most = f"In the device's idle time they can hide at most {format_ns(hidden)}, {share} of its busy time then."
    if count == moves:
        sentence = (
            f"All {count:,} copying or filling calls have no recorded activity, and every other launch has one: they "
            f"were of zero bytes, or such activities are not recorded here. {at_most}"
        )
        return Check(name, Verdict.WARN, count, sentence, hidden, "device")
    verdict = Verdict.WARN if hidden <= _TOLERATED_SHARE * (busy_ns + hidden) else Verdict.FAIL
    sentence = (
        f"{count:,} of {total:,} launching calls have no recorded activity: records were dropped or fell outside the "
        f"window, so device times are too low. {at_most}"
    )
    return Check(name, verdict, count, sentence, hidden, "device", count / total, "launches")


def _left_out(evidence: CheckInput) -> int:
    """Return how many launching calls have no activity because it was taken out as impossible."""
    launches = evidence.trace.launches
    numbers = launches.filter(pl.Series(calls_that(launches, lambda call: call.enqueues)))["correlation"].drop_nulls()
    return len(evidence.implausible.launches.intersection(numbers.to_list())) if evidence.implausible.launches else 0


def _launched_outside_steps(trace: Trace, links: Links) -> Check:
    check = _timed(
        trace,
        CheckName.LAUNCHED_OUTSIDE_STEPS,
        activities_launched_outside_steps(trace, links),
        "were launched outside every recorded step. They count in the totals and belong to no step.",
        "No activity was launched outside the recorded steps.",
    )
    return _at_most_warn(check)


def _outside_window(trace: Trace, early: Bools, timelines: Sequence[DeviceTimeline]) -> Check:
    name = CheckName.WORK_OUTSIDE_WINDOW
    outside = sum(timeline.outside_window_ns for timeline in timelines)
    whole = sum(timeline.busy_ns for timeline in timelines)
    share = outside / whole if whole else 0.0
    if not outside:
        return Check(name, Verdict.PASS, 0, "All device work lies in the window.", 0, "device", 0.0, "device busy")
    # If a loop does not wait for the device, work queued before the recording belongs to steps before it.
    queued = _outside_ns(trace, early, timelines)
    verdict = Verdict.WARN if outside - queued <= TOLERATED_OUTSIDE * whole else Verdict.FAIL
    count = _outside_count(trace, timelines[0].window)
    before = f", {format_ns(queued)} of it before the recording" if queued else ""
    sentence = (
        f"{format_ns(outside)} of device work ({format_share(outside, whole)} of busy time) ran outside the window: it "
        f"was launched before the steps{before}, after them, or between them. Shares of the window do not describe it."
    )
    return Check(name, verdict, count, sentence, outside, "device", share, "device busy")


def _outside_ns(trace: Trace, chosen: Bools, timelines: Sequence[DeviceTimeline]) -> int:
    """Return how long devices worked on some activities outside their windows, in nanoseconds."""
    activities = trace.activities
    device, start, end = column(activities, "device"), column(activities, "start_ns"), end_of(activities)
    total = 0
    for timeline in timelines:
        own = np.flatnonzero(chosen & (device == timeline.device))
        work = Intervals.union_of(start[own], end[own])
        total += work.length - work.within(timeline.window.spans).length
    return total


def _outside_count(trace: Trace, window: Window) -> int:
    """Return how many activities lie outside the steps; 0 without steps, as the window then holds all of them."""
    if window.kind not in (WindowKind.STEPS, WindowKind.STEP_WORK):
        return 0
    return int((~window.spans.holds(column(trace.activities, "start_ns"), end_of(trace.activities))).sum())


def _stream_overlaps(trace: Trace) -> Check:
    """Judge activities that overlap on one stream, where work runs in order.

    Branches of one graph replay share a stream's number, and a kernel that is launched early on purpose (programmatic
    dependent launch, for which there are calls of their own) overlaps the end of the one before it alone: those are
    healthy.
    """
    name = CheckName.OVERLAP_ON_ONE_STREAM
    overlaps = _Overlaps.of(trace)
    whole = int(trace.activities["duration_ns"].sum())
    if not overlaps.count:
        return Check(name, Verdict.PASS, 0, "No two activities overlap on one stream.", 0, "device", 0.0, "device sum")
    share = overlaps.time_ns / whole if whole else 0.0
    wrong = overlaps.wrong_ns / whole if whole else 0.0
    verdict = Verdict.PASS if share <= _USUAL_OVERLAP else Verdict.WARN
    beginning = (
        f"{overlaps.count:,} activities begin before the one before them on their stream has ended "
        f"({format_ns(overlaps.time_ns)} in all)"
    )
    if wrong <= _USUAL_OVERLAP:
        sentence = f"{beginning}, as kernels do that are launched early on purpose. "
    else:
        sentence = f"{beginning}, which no stream allows: their times are wrong, or streams share a number. "
        verdict = Verdict.FAIL if wrong > _TOLERATED_SHARE else verdict
    sentence += "Busy time counts the overlap once, sums twice."
    return Check(name, verdict, overlaps.count, sentence, overlaps.time_ns, "device", share, "device sum")


class _Overlaps(Struct, frozen=True):
    """Activities that begin before an earlier one of their stream has ended.

    Attributes:
        count: how many.
        time_ns: by how much, added up.
        wrong_ns: the same of those that overlap more than the one before them, end before it does, or were launched by
            a call with which they may not.
    """

    count: int
    time_ns: int
    wrong_ns: int

    @classmethod
    def of(cls, trace: Trace) -> "_Overlaps":
        early = trace.launches.filter(names_that(trace.launches, lambda name: "LaunchKernelEx" in name))
        table = trace.activities.select(
            "start_ns",
            may=pl.col("correlation").is_in(early["correlation"].drop_nulls().implode()).fill_null(value=False),
            lane=pl.struct("device", "context", "stream").rank("dense"),
            end_ns=pl.Series(end_of(trace.activities)),
            replay=pl.when(pl.col("graph_node_id").fill_null(0) != 0).then(pl.col("correlation")),
        ).sort("lane", "start_ns")
        # Nodes of one replay take the place of one activity, from the first one's start to the last one's end.
        replays = table.filter(pl.col("replay").is_not_null()).group_by("lane", "replay")
        single = table.filter(pl.col("replay").is_null()).select("lane", "start_ns", "end_ns", "may")
        joined = replays.agg(pl.col("start_ns").min(), pl.col("end_ns").max(), may=pl.lit(value=False))
        joined = joined.select(single.columns)
        ordered = pl.concat([single, joined]).sort("lane", "start_ns")
        # The latest end of all earlier activities of the stream: the one directly before may have ended earlier.
        previous = pl.col("end_ns").cum_max().shift(1).over("lane")
        earlier = pl.col("end_ns").cum_max().shift(2).over("lane")
        late = previous > pl.col("start_ns")
        out_of_turn = ~pl.col("may") | (previous > pl.col("end_ns")) | (earlier > pl.col("start_ns"))
        sums = ordered.select(
            late.sum().alias("count"),
            (previous - pl.col("start_ns")).clip(lower_bound=0).sum().alias("time_ns"),
            pl.when(late & out_of_turn.fill_null(value=True))
            .then(previous - pl.col("start_ns"))
            .sum()
            .alias("wrong_ns"),
        ).row(0, named=True)
        return cls(*(int(sums[name] or 0) for name in ("count", "time_ns", "wrong_ns")))


def _repeated_correlations(trace: Trace, links: Links) -> Check:
    correlation = trace.activities["correlation"]
    repeated = (correlation.is_not_null() & correlation.is_duplicated()).to_numpy()
    return _timed(
        trace,
        CheckName.REPEATED_CORRELATIONS,
        np.flatnonzero(repeated & ~_in_graph(trace, links)),
        "share their correlation id with another although they belong to no graph: their operator is uncertain.",
        "No correlation id is repeated outside graph launches.",
    )


def _waits_recorded(trace: Trace) -> Check | None:
    """Judge whether waits of one stream for another say which record of an event they are for; None without any.

    As PyTorch's own validator has it (``torch.profiler._trace_validator``): the record is there, and before the wait.
    Of a part, and of what was recorded before the recording began, that cannot be known.
    """
    waits = trace.synchronizations.filter(pl.col("name").cast(pl.String) == _STREAM_WAIT)
    if not waits.height or trace.around is not None or not format_named(trace.source.format).is_pytorch:
        return None
    calls = trace.launches.drop_nulls("correlation")
    records = calls.filter(pl.col("name").cast(pl.String).str.contains("EventRecord"))
    times = records.group_by("correlation").agg(recorded_ns=pl.col("start_ns").min())
    known = waits.join(times, left_on="recorded_by", right_on="correlation", how="left")
    # Numbers of calls rise, so that a lower one than all here is of a call before the recording.
    before = pl.col("recorded_by").is_between(0, pl.lit(calls["correlation"].min(), pl.Int64), closed="left")
    fits = (pl.col("recorded_ns") <= pl.col("start_ns")) | (before & pl.col("recorded_ns").is_null())
    count = known.filter(~fits.fill_null(value=False)).height
    if not count:
        return Check(
            CheckName.WAITS_RECORDED, Verdict.PASS, 0, "Waits between streams name the work that they are for."
        )
    sentence = (
        f"{count:,} of {waits.height:,} waits of a stream for another one do not say which work they are for: the "
        "record of their event is missing, or later than they are. What they waited for is then taken from the order "
        "of launches."
    )
    return Check(CheckName.WAITS_RECORDED, Verdict.WARN, count, sentence)


_STREAM_WAIT = "Stream Wait Event"


def _in_graph(trace: Trace, links: Links) -> npt.NDArray[np.bool_]:
    """Tell per activity whether it is a node of a graph: all nodes of one graph launch share its correlation id."""
    graph_launch = calls_of(trace.launches, ApiKind.GRAPH_LAUNCH)
    launched = links.activity_launch >= 0
    in_graph = column(trace.activities, "graph_node_id") > 0
    in_graph[launched] |= graph_launch[links.activity_launch[launched]]
    return in_graph


def _cold_launches(trace: Trace) -> Check:
    loading = module_loading(trace)
    if not loading.height:
        sentence = "No code was loaded to the device during the recording: all launches are warm."
        return Check(CheckName.COLD_LAUNCHES, Verdict.PASS, 0, sentence)
    time = int(loading["duration_ns"].sum())
    sentence = (
        f"Code was loaded to the device {loading.height:,} times ({format_ns(time)} on the host). The launch calls "
        "that did so show the cost of a first use, not of a launch; the steps they fall in are marked cold."
    )
    return Check(CheckName.COLD_LAUNCHES, Verdict.WARN, loading.height, sentence, time, "host")


def _profiler_interruptions(trace: Trace) -> Check:
    """Judge CUPTI's interruptions of the host. Their records have no thread, so which operators they hit is unknown."""
    name = CheckName.PROFILER_INTERRUPTIONS
    own = trace.overheads.filter(names_that(trace.overheads, is_profilers_own))
    if not own.height:
        return Check(name, Verdict.PASS, 0, "The profiler recorded no interruption of the host by itself.")
    time = int(own["duration_ns"].sum())
    sentence = (
        f"The profiler itself held up the host {own.height:,} times ({format_ns(time)}, for buffers and set-up): the "
        "CPU times of the operators it fell into are too large by that. Device times are not affected."
    )
    return Check(name, Verdict.WARN, own.height, sentence, time, "host")


def _graph_replays(trace: Trace, links: Links, timelines: Sequence[DeviceTimeline]) -> Check:
    """Judge whether all replays of a graph have equally many nodes, which follow each other without a pause."""
    name = CheckName.GRAPH_REPLAYS_COMPLETE
    replays = (
        trace.activities.filter(pl.col("graph_id").is_not_null() & (pl.col("graph_id") != 0))
        .group_by("graph_id", "correlation")
        .agg(nodes=pl.len(), longest=pl.col("duration_ns").max())
        .with_columns(pl.col("longest").max().over("graph_id"), most=pl.col("nodes").max().over("graph_id"))
    )
    # A graph has as many nodes as its fullest replay. A missing node took at most as long as the longest of its graph.
    short = replays.filter(pl.col("nodes") < pl.col("most"))
    if (paused := _pauses_in_replays(trace, links, timelines)) is not None and not short.height:
        return paused
    if not short.height:
        return _all_replays(trace, replays.height)
    lacking = short["most"].cast(pl.Int64) - short["nodes"].cast(pl.Int64)
    missing, at_most = int(lacking.sum()), int((lacking * short["longest"]).sum())
    sentence = (
        f"{short.height:,} of {replays.height:,} graph replays recorded fewer nodes than others of the same graph "
        f"({missing:,} activities missing): idle time of those replays is too high, by {format_ns(at_most)} if each "
        "took as long as the longest one of its graph."
    )
    if paused is not None:
        return replace(paused, count=missing, sentence=f"{sentence} {paused.sentence}")
    return Check(name, Verdict.FAIL, missing, sentence, at_most, "device")


def _all_replays(trace: Trace, count: int) -> Check:
    """Judge graph replays none of which lacks nodes that others of its graph have."""
    name = CheckName.GRAPH_REPLAYS_COMPLETE
    launched = int(calls_of(trace.launches, ApiKind.GRAPH_LAUNCH).sum())
    if launched > count:
        sentence = (
            f"Graphs were replayed {launched:,} times, and the driver did not number their nodes: whether every "
            "replay was recorded whole cannot be told."
        )
        return Check(name, Verdict.WARN, launched, sentence)
    sentence = f"All {count:,} graph replays recorded the same nodes." if count else "No graph was replayed."
    return Check(name, Verdict.PASS, 0, sentence)


def _pauses_in_replays(trace: Trace, links: Links, timelines: Sequence[DeviceTimeline]) -> Check | None:
    """Judge pauses of a device between nodes of one replay; None where they are a small part of its time."""
    rows = np.flatnonzero(_in_graph(trace, links))
    replays = (
        trace.activities[rows]
        .filter(pl.col("correlation").is_not_null())
        .group_by("device", "correlation")
        .agg(begin=pl.col("start_ns").min(), end=(pl.col("start_ns") + pl.col("duration_ns")).max())
    )
    count = total = whole = 0
    for timeline in timelines:
        own = replays.filter(pl.col("device").fill_null(NO_DEVICE) == timeline.device)
        pieces = timeline.idle.pieces
        long = pieces.end - pieces.start > _PAUSE_IN_REPLAY_NS
        inside = Intervals.union_of(own["begin"].to_numpy(), own["end"].to_numpy())
        row, start, end = pieces.chosen(long).overlaps(inside)
        count, total = count + len(np.unique(row)), total + int((end - start).sum())
        whole += timeline.window.duration_ns
    if total <= _TOLERATED_SHARE * whole:
        return None
    sentence = (
        f"The device pauses {count:,} times ({format_ns(total)}, {format_share(total, whole)} of the window) between "
        "nodes of one graph replay, and nothing else runs: nodes follow each other within microseconds, so records of "
        "them were lost, or the graph calls functions of the host."
    )
    share = total / whole
    return Check(CheckName.GRAPH_REPLAYS_COMPLETE, Verdict.FAIL, count, sentence, total, "device", share, "window")
