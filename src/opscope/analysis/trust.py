"""Can the figures of this trace be believed? Every check has a count, a share of time and a sentence."""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from opscope.analysis.launches import LaunchSummary
from opscope.analysis.links import Links, column, end_of
from opscope.analysis.nesting import Ints
from opscope.analysis.steps import MODULE_LOADING, activities_launched_outside_steps
from opscope.analysis.timeline import DeviceTimeline
from opscope.model import Trace
from opscope.units import format_ns, format_share

# Up to this share of the device sum a defect leaves the totals usable, and is a warning.
_TOLERATED_SHARE = 0.05


# Kernels launched programmatically early begin a little before their predecessor ends: real, and harmless.
_USUAL_OVERLAP = 0.01
# What Kineto calls the work of CUPTI, in its category "overhead".
_PROFILER_RECORD = r"Activity Buffer Request|Buffer Flush|Instrumentation|Resource|CUPTI"
# By how many percent profiled steps may take longer than unprofiled ones: device times do not suffer, host times do.
_TOLERATED_OVERHEAD = 20.0
_EXCESSIVE_OVERHEAD = 100.0


class Verdict(enum.StrEnum):
    """The result of a check, and of all checks together (the worst of them)."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a trace.

    Attributes:
        name: stable identifier.
        verdict: the result.
        count: how many records are concerned.
        time_ns: the device time concerned; None where time says nothing.
        share: ``time_ns`` as a fraction of the device sum.
        sentence: what was found, and what it means for the figures.
    """

    name: str
    verdict: Verdict
    count: int
    time_ns: int | None
    share: float | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Trust:
    """All checks of one trace."""

    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all checks."""
        found = {check.verdict for check in self.checks}
        return next((v for v in (Verdict.FAIL, Verdict.WARN) if v in found), Verdict.PASS)


def check_trace(
    trace: Trace,
    links: Links,
    launches: LaunchSummary,
    timelines: Sequence[DeviceTimeline],
    *,
    expect_device_work: bool | None = None,
) -> Trust:
    """Run every check.

    Args:
        trace: the trace.
        links: its links.
        launches: its launch summary.
        timelines: its devices' timelines.
        expect_device_work: whether the workload ran on a GPU with its activities recorded; None where that is only
            known from the trace's own launch calls.
    """
    if expect_device_work is None:
        expect_device_work = launches.api is not None
    return Trust(tuple(_checks(trace, links, launches, timelines, expect_device_work=expect_device_work)))


def check_overhead(percent: float, *, has_device: bool) -> Check:
    """Judge by how much longer profiled steps took than unprofiled ones.

    Args:
        percent: the difference of the medians, in percent of the unprofiled one.
        has_device: whether device times were recorded; where only host times were, they are all that is reported.
    """
    found = f"Profiled steps took {percent:+.1f} % against unprofiled ones"
    if percent <= _TOLERATED_OVERHEAD:
        return Check("profiler_overhead", Verdict.PASS, 0, None, None, f"{found}.")
    if has_device:
        verdict = Verdict.WARN if percent > _EXCESSIVE_OVERHEAD else Verdict.PASS
        sentence = f"{found}: CPU times and idle times are too large by that; device times are not affected."
        return Check("profiler_overhead", verdict, 0, None, None, sentence)
    verdict = Verdict.FAIL if percent > _EXCESSIVE_OVERHEAD else Verdict.WARN
    sentence = (
        f"{found}: the CPU times of the operators contain what the profiler cost, not evenly spread. Believe the "
        "unprofiled step time; read the operators' times as upper limits."
    )
    return Check("profiler_overhead", verdict, 0, None, None, sentence)


def _checks(
    trace: Trace,
    links: Links,
    launches: LaunchSummary,
    timelines: Sequence[DeviceTimeline],
    *,
    expect_device_work: bool,
) -> Iterator[Check]:
    yield _anything(trace, expect_device_work=expect_device_work)
    yield _file_is_valid(trace)
    if not trace.activities.height:
        return
    yield _launch_recorded(trace, links)
    yield _operator_recorded(trace, links)
    yield _launches_without_activity(launches)
    yield _launched_outside_steps(trace, links)
    yield _outside_window(trace, timelines)
    yield _impossible_durations(trace)
    yield _stream_overlaps(trace)
    yield _repeated_correlations(trace, links)
    yield _cold_launches(trace)
    yield _profiler_interruptions(trace)
    yield _graph_replays(trace)


def _anything(trace: Trace, *, expect_device_work: bool) -> Check:
    count = trace.activities.height
    if expect_device_work and not count:
        sentence = (
            "No kernel, memcpy or memset was recorded of a workload that uses a GPU: its device times are unknown, not "
            "0. Another profiler may hold CUPTI, or CUDA activities were not collected."
        )
        return Check("device_work_recorded", Verdict.FAIL, 0, None, None, sentence)
    if not count and not trace.operators.height:
        sentence = "The trace records no operator and no device activity."
        return Check("device_work_recorded", Verdict.FAIL, 0, None, None, sentence)
    sentence = f"{trace.operators.height:,} operator calls and {count:,} device activities were recorded."
    return Check("device_work_recorded", Verdict.PASS, count, None, None, sentence)


def _file_is_valid(trace: Trace) -> Check:
    count = trace.source.replaced_bytes
    if not count:
        return Check("file_is_valid", Verdict.PASS, 0, None, None, "The trace file is valid.")
    sentence = (
        f"The trace file holds {count:,} bytes that no JSON may hold, read as question marks: its producer wrote some "
        "names from memory that was not text. Times and ids are whole."
    )
    return Check("file_is_valid", Verdict.WARN, count, None, None, sentence)


def _timed(trace: Trace, name: str, rows: Ints, problem: str, fine: str) -> Check:
    """Build a check whose weight is the device time of the activities concerned."""
    durations = trace.activities["duration_ns"].to_numpy()
    time, whole = int(durations[rows].sum()), int(durations.sum())
    share = time / whole if whole else 0.0
    if not len(rows):
        return Check(name, Verdict.PASS, 0, 0, 0.0, fine)
    verdict = Verdict.WARN if share <= _TOLERATED_SHARE else Verdict.FAIL
    count = f"{len(rows):,} of {trace.activities.height:,} activities"
    amount = f"{count} ({format_ns(time)}, {format_share(time, whole)} of the device sum)"
    return Check(name, verdict, len(rows), time, share, f"{amount} {problem}")


def _launch_recorded(trace: Trace, links: Links) -> Check:
    return _timed(
        trace,
        "launch_recorded",
        np.flatnonzero((links.activity_launch < 0) & (links.activity_operator < 0)),
        "have no recorded launch: it fell outside the recording, or its record was lost. They count as busy and are "
        "listed as unlinked; no operator is charged.",
        "Every activity has its launch.",
    )


def _operator_recorded(trace: Trace, links: Links) -> Check:
    check = _timed(
        trace,
        "operator_recorded",
        np.flatnonzero((links.activity_launch >= 0) & (links.activity_operator < 0)),
        "were launched outside any operator (graph replays, kernels launched from Python); they are unlinked.",
        "Every launch lies in an operator.",
    )
    return _at_most_warn(check)


def _at_most_warn(check: Check) -> Check:
    """Soften a check that finds complete records, only not where most figures look for them."""
    return replace(check, verdict=Verdict.WARN) if check.count else check


def _launches_without_activity(launches: LaunchSummary) -> Check:
    count = launches.without_activity
    if not count:
        return Check("launches_without_activity", Verdict.PASS, 0, None, None, "Every launch has its activity.")
    total = launches.api.count if launches.api else count
    verdict = Verdict.WARN if count <= _TOLERATED_SHARE * total else Verdict.FAIL
    sentence = (
        f"{count:,} of {total:,} launching calls have no recorded activity: records were dropped or fell outside the "
        "window, so device times are too low by an unknown amount."
    )
    return Check("launches_without_activity", verdict, count, None, None, sentence)


def _launched_outside_steps(trace: Trace, links: Links) -> Check:
    check = _timed(
        trace,
        "launched_outside_steps",
        activities_launched_outside_steps(trace, links),
        "were launched outside every recorded step. They count in the totals and belong to no step.",
        "No activity was launched outside the recorded steps.",
    )
    return _at_most_warn(check)


def _outside_window(trace: Trace, timelines: Sequence[DeviceTimeline]) -> Check:
    outside = sum(timeline.outside_window_ns for timeline in timelines)
    whole = sum(timeline.busy_ns for timeline in timelines)
    share = outside / whole if whole else 0.0
    rows = sum(_outside_count(trace, timeline) for timeline in timelines)
    if not outside:
        sentence = "All device work lies in the window."
        return Check("work_outside_window", Verdict.PASS, 0, 0, 0.0, sentence)
    verdict = Verdict.WARN if share <= _TOLERATED_SHARE else Verdict.FAIL
    sentence = (
        f"{format_ns(outside)} of device work ({format_share(outside, whole)} of busy time) ran outside the window: "
        "it was launched between steps, or the steps did not wait for it. Shares of the window do not describe it."
    )
    return Check("work_outside_window", verdict, rows, outside, share, sentence)


def _outside_count(trace: Trace, timeline: DeviceTimeline) -> int:
    start, end = column(trace.activities, "start_ns"), end_of(trace.activities)
    outside = (start < timeline.window.start_ns) | (end > timeline.window.end_ns)
    return int((outside & (column(trace.activities, "device") == timeline.device)).sum())


def _impossible_durations(trace: Trace) -> Check:
    durations, start = trace.activities["duration_ns"].to_numpy(), column(trace.activities, "start_ns")
    # No activity can outlast the time from the first record of the trace to the last start of anything.
    latest = max(int(start.max()), *(int(end_of(t).max()) for t in (trace.operators, trace.launches) if t.height), 0)
    too_long = (durations > latest - int(start.min())) & (trace.activities.height > 1)
    return _timed(
        trace,
        "impossible_durations",
        np.flatnonzero((durations < 0) | too_long),
        "are negative or longer than the whole recording: sums that contain them are wrong.",
        "No duration is negative or longer than the recording.",
    )


def _stream_overlaps(trace: Trace) -> Check:
    ordered = trace.activities.with_row_index("row").with_columns(end_ns=pl.Series(end_of(trace.activities)))
    previous = pl.col("end_ns").cum_max().shift(1).over("device", "stream", order_by="start_ns")
    overlapping = ordered.filter(previous > pl.col("start_ns"))
    overlap = ordered.select((previous - pl.col("start_ns")).clip(lower_bound=0).sum()).item() or 0
    whole = int(trace.activities["duration_ns"].sum())
    if not overlapping.height:
        sentence = "No two activities overlap on one stream."
        return Check("overlap_on_one_stream", Verdict.PASS, 0, 0, 0.0, sentence)
    share = overlap / whole if whole else 0.0
    verdict = Verdict.WARN if share <= _TOLERATED_SHARE else Verdict.FAIL
    if share <= _USUAL_OVERLAP:
        verdict = Verdict.PASS
    sentence = (
        f"{overlapping.height:,} activities begin before the one before them on their stream has ended "
        f"({format_ns(overlap)} in all). Busy time is a union and not affected; sums count the overlap twice."
    )
    return Check("overlap_on_one_stream", verdict, overlapping.height, overlap, share, sentence)


def _repeated_correlations(trace: Trace, links: Links) -> Check:
    repeated = (
        trace.activities["correlation"].is_not_null() & trace.activities["correlation"].is_duplicated()
    ).to_numpy()
    # All nodes of one graph launch share its correlation id.
    graph_launch = trace.launches["name"].cast(pl.String).str.contains("GraphLaunch").to_numpy()
    launched = links.activity_launch >= 0
    in_graph = column(trace.activities, "graph_node_id") > 0
    in_graph[launched] |= graph_launch[links.activity_launch[launched]]
    return _timed(
        trace,
        "repeated_correlations",
        np.flatnonzero(repeated & ~in_graph),
        "share their correlation id with another although they belong to no graph: their operator is uncertain.",
        "No correlation id is repeated outside graph launches.",
    )


def _cold_launches(trace: Trace) -> Check:
    loading = trace.overheads.filter(pl.col("name").cast(pl.String).str.contains(MODULE_LOADING.pattern))
    if not loading.height:
        sentence = "No code was loaded to the device during the recording: all launches are warm."
        return Check("cold_launches", Verdict.PASS, 0, 0, None, sentence)
    time = int(loading["duration_ns"].sum())
    sentence = (
        f"{loading.height:,} launches loaded their code to the device first ({format_ns(time)} on the host). Those "
        "launch calls show the cost of a first use, not of a launch; the steps they fall in are marked cold."
    )
    return Check("cold_launches", Verdict.WARN, loading.height, time, None, sentence)


def _profiler_interruptions(trace: Trace) -> Check:
    """CUPTI's own records: they carry no thread, so the operators they fell into cannot be told."""
    names = pl.col("name").cast(pl.String)
    own = trace.overheads.filter(names.str.contains(_PROFILER_RECORD) & ~names.str.contains(MODULE_LOADING.pattern))
    if not own.height:
        sentence = "The profiler recorded no interruption of the host by itself."
        return Check("profiler_interruptions", Verdict.PASS, 0, 0, None, sentence)
    time = int(own["duration_ns"].sum())
    sentence = (
        f"The profiler itself held up the host {own.height:,} times ({format_ns(time)}, for buffers and set-up): "
        "the CPU times of the operators it fell into are too large by that. Device times are not affected."
    )
    return Check("profiler_interruptions", Verdict.WARN, own.height, time, None, sentence)


def _graph_replays(trace: Trace) -> Check:
    replays = (
        trace.activities.filter(pl.col("graph_id").is_not_null() & (pl.col("graph_id") != 0))
        .group_by("graph_id", "correlation")
        .agg(nodes=pl.len())
        .with_columns(most=pl.col("nodes").max().over("graph_id"))
    )
    short = replays.filter(pl.col("nodes") < pl.col("most"))
    if not short.height:
        count = replays.height
        sentence = f"All {count:,} graph replays recorded the same nodes." if count else "No graph was replayed."
        return Check("graph_replays_complete", Verdict.PASS, 0, None, None, sentence)
    missing = int((short["most"] - short["nodes"]).sum())
    sentence = (
        f"{short.height:,} of {replays.height:,} graph replays recorded fewer nodes than others of the same graph "
        f"({missing:,} activities missing): idle time of those replays is too high."
    )
    return Check("graph_replays_complete", Verdict.FAIL, missing, None, None, sentence)
