"""One rank's trace -> its summary."""

from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.idle.causes import inside_by_thread
from opscope.analysis.idle.gaps import Places, longest_gaps
from opscope.analysis.idle.host_time import PAUSE_NS, HostTime
from opscope.analysis.idle.idle import IdleTime
from opscope.analysis.idle.timeline import DeviceTimeline, busy_parts, communication_mask, device_timelines
from opscope.analysis.structure.api_masks import calls_that, names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of, latest_around
from opscope.analysis.structure.links import Links, link
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.structure.origin import rank_told, with_named_devices
from opscope.analysis.structure.step_work import linked_activities, step_of_activities, step_table, window_of
from opscope.analysis.structure.streams import NO_DEVICE
from opscope.analysis.trust.plausible import plausible
from opscope.analysis.verdict.step_evidence import busiest
from opscope.base.text import lazy_pattern
from opscope.distributed.summary import (
    COMMUNICATIONS,
    EXPOSED,
    GAPS,
    IDLE_COLUMNS,
    PAUSES,
    STEPS,
    WAITS,
    WORK,
    RankFacts,
    RankSummary,
)
from opscope.documents.verdict import IdleCause
from opscope.knowledge.collectives import MESSAGES, NAMED, collective_of
from opscope.readers.events import HOST_NAME, shaped
from opscope.readers.reading import read
from opscope.trace.model import Trace

_ON_HOST: Final = lazy_pattern(r"gloo:")  # ranges of the backend that communicates on the host
BASE_TIMES: Final = ("baseTimeNanoseconds", "baseTimeNanosecond")  # headers' keys of what times count from
_LATEST_NS: Final = 1 << 62  # nanoseconds since 1970 until 2116
_MOST_PAUSES: Final = 200  # of a step
_MOST_WORK: Final = 40_000  # rows of work that are kept: beyond that, what takes least is left out


def summarise_rank(path: Path) -> RankSummary:
    """Read one rank's trace and return its summary.

    Raises:
        BadInputError: the file is not a trace.
        EnvironmentLacksError: a package that reads this kind of trace is not installed.
    """
    return summary_of(read(path), str(path))


class _Analysis(Struct, frozen=True):
    """What of a trace's analysis a summary rests on: a part of it, as thousands of traces are read."""

    trace: Trace
    links: Links
    host: HostTime
    devices: tuple[DeviceTimeline, ...]
    impossible: int

    @classmethod
    def of(cls, trace: Trace) -> "_Analysis":
        trace, implausible = plausible(with_named_devices(trace, None))
        links = link(trace)
        host = HostTime(trace, links)
        out = implausible.activities + implausible.host_records + trace.source.odd_events
        return cls(trace, links, host, device_timelines(trace, links, host), out)


def summary_of(trace: Trace, path: str) -> RankSummary:
    """Return the summary of a trace.

    Args:
        trace: the trace.
        path: the file, which may tell the rank.
    """
    analysis = _Analysis.of(trace)
    trace = analysis.trace  # without records that cannot be true
    device = busiest(analysis.devices) if analysis.devices else None
    table = step_table(trace)
    of_step = step_of_activities(trace, analysis.links, table)
    if not table.height:
        of_step = np.zeros(trace.activities.height, np.int64)
    base = base_of(trace)
    kernels = _told_of_kernels(trace)
    communications, on_device = _communications(analysis, kernels, of_step, base)
    labelled = kernels.height if trace.communications.height else 0
    parts = busy_parts(trace, None)
    return RankSummary(
        facts=_facts(analysis, path, device, max(0, int(parts.communicates.sum()) - labelled)),
        tables={
            "steps": _steps(analysis, device, base),
            "communications": communications,
            "exposed": _exposed_parts(analysis, device, communications, on_device, base),
            "work": _work(analysis, device),
            "gaps": _gaps(analysis, device, table),
            "pauses": _pauses(analysis, table),
            "waits": _waits(analysis, table),
        },
    )


def base_of(trace: Trace) -> int:
    """Return what is added to a trace's times to make them those of the host's clock; 0 where the file does not say."""
    text = next((trace.source.metadata[name] for name in BASE_TIMES if name in trace.source.metadata), "0")
    return int(text) if text.isdecimal() and len(text) <= len(str(_LATEST_NS)) and int(text) < _LATEST_NS else 0


def _facts(analysis: _Analysis, path: str, device: DeviceTimeline | None, unlabelled: int) -> RankFacts:
    rank = rank_told(analysis.trace.source)
    return RankFacts(
        path=path,
        rank=rank.rank,
        world=rank.world,
        untrue=rank.untrue,
        host=analysis.trace.source.metadata.get(HOST_NAME),
        device=None if device is None else device.name,
        damage=analysis.trace.source.damage,
        unlabelled=unlabelled,
        impossible=analysis.impossible,
        host_collectives=int(names_that(analysis.trace.annotations, _ON_HOST.match).sum()),
    )


def _spans(analysis: _Analysis, device: DeviceTimeline | None) -> tuple[list[int | None], Intervals, Intervals]:
    """Return the numbers of the steps, when the host worked at them, and when the device did."""
    table = step_table(analysis.trace)
    if table.height:
        hosts = Intervals(column(table, "start_ns"), column(table, "end_ns"))
        return table["step"].to_list(), hosts, hosts if device is None else device.steps
    window = window_of(analysis.trace) if device is None else device.window
    # Nothing tells how long the host worked at it, so it counts as no time.
    host = Intervals(np.array([window.start_ns]), np.array([window.start_ns]))
    return [None], host, Intervals(np.array([window.start_ns]), np.array([window.end_ns]))


def _steps(analysis: _Analysis, device: DeviceTimeline | None, base: int) -> pl.DataFrame:
    numbers, hosts, spans = _spans(analysis, device)
    waiting = _waiting(analysis.host, analysis.trace)
    columns = {
        "row": np.arange(len(numbers)),
        "step": pl.Series(numbers, dtype=pl.Int64),
        "begin_ns": hosts.start + base,
        "host_ns": hosts.end - hosts.start,
        "host_waits_ns": _within(hosts, waiting),
        "host_loading_ns": _within(hosts, _loading(analysis.trace, waiting)),
        "device_ns": spans.end - spans.start,
    }
    if device is None:
        columns |= dict.fromkeys(STEPS.keys() - columns.keys(), np.zeros(len(numbers), np.int64))
        return pl.DataFrame(columns, schema=STEPS)
    parts = busy_parts(analysis.trace, device.device)
    compute, without_copies, busy = (_within(spans, one) for one in (parts.compute, parts.without_memcpy, parts.busy))
    communication = Intervals.union_of(parts.start[parts.communicates], parts.end[parts.communicates])
    columns |= {
        "compute_ns": compute,
        "communication_ns": without_copies - compute,
        "hidden_communication_ns": _within(spans, communication) - (without_copies - compute),
        "memcpy_ns": busy - without_copies,
    }
    idle = _with_long_latencies(device.idle)
    for cause, name in IDLE_COLUMNS.items():
        columns[name] = _within(spans, idle.pieces.chosen(idle.is_any_of((cause,))))
    return pl.DataFrame(columns, schema=STEPS)


def _with_long_latencies(idle: IdleTime) -> IdleTime:
    """Return idle time in which a launch that has returned, and still takes long to begin, waits for something."""
    late = idle.is_any_of((IdleCause.LATENCY,)) & (idle.pieces.end - idle.pieces.start > PAUSE_NS)
    return idle.with_cause(np.flatnonzero(late), IdleCause.DEPENDENCY) if late.any() else idle


def _loading(trace: Trace, waiting: Intervals) -> Intervals:
    """Return when any thread fetched a batch and did not wait for the device in it."""
    threads = inside_by_thread(trace, IdleCause.INPUT).values()
    none = [np.empty(0, np.int64)]
    loading = Intervals.union_of(
        np.concatenate(none + [one.start for one in threads]), np.concatenate(none + [one.end for one in threads])
    )
    if not len(loading):
        return loading
    return loading.within(waiting.gaps(int(loading.start[0]), int(loading.end[-1])))


def _within(spans: Intervals, others: Intervals) -> Ints:
    """Return per span how much of it lies in some others."""
    sums = np.zeros(len(spans), np.int64)
    step, start, end = spans.overlaps(others)
    np.add.at(sums, step, end - start)
    return sums


def _waiting(host: HostTime, trace: Trace) -> Intervals:
    """Return when the host waited for the device.

    It waits too in calls that only issue work: once the queue of launches is full, each takes until the device has
    done one. Without waiting they take microseconds.
    """
    issues = calls_that(trace.launches, lambda call: call.enqueues)
    full = issues & (host.end - host.start > PAUSE_NS) & ~host.cold
    waits = np.flatnonzero(host.drains | full)
    return Intervals.union_of(host.start[waits], host.end[waits])


def _communications(
    analysis: _Analysis, named: pl.DataFrame, of_step: Ints, base: int
) -> tuple[pl.DataFrame, pl.Series]:
    """Return the table of `COMMUNICATIONS`, and the device of each row."""
    trace, links = analysis.trace, analysis.links
    launched = np.where(
        links.activity_launch >= 0,
        column(trace.launches, "start_ns")[links.activity_launch] if trace.launches.height else -1,
        column(trace.activities, "start_ns"),
    )
    computing = _computing(trace)
    kernels = trace.activities.select("correlation", "start_ns", "device", "bytes").with_columns(
        launched=launched, row=of_step, exposed=_exposed(trace, computing)
    )
    # Two kernels of one launch that begin together are one here.
    kernels = kernels.unique(["correlation", "start_ns"], keep="first", maintain_order=True)
    result = named.join(kernels, on=["correlation", "start_ns"], how="inner").filter(pl.col("row") >= 0)
    of_call = pl.when(pl.col("external_id") > 0).then("external_id").otherwise(-pl.col("correlation"))
    # What only has a name is one call a kernel: all kernels of a replayed graph have one number.
    call = of_call if trace.communications.height else pl.int_range(pl.len(), dtype=pl.Int64)
    place = pl.when(pl.col("collective") == "send").then("destination").otherwise("source")
    # A call that is cut into several kernels is one.
    calls = (
        result.sort("launched", "start_ns")
        .with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"), call=call)
        .group_by("call", maintain_order=True)
        .agg(
            pl.col("row", "collective", "group", "group_ranks", "sequence", "element_type").first(),
            pl.col("group_description", "group_size", "elements_in", "elements_out", "bytes", "launched").first(),
            pl.col("device").first(),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            peer=pl.when(pl.col("collective").is_in(MESSAGES)).then(place).first(),
            is_uneven=pl.any_horizontal(_differ("splits_in"), _differ("splits_out")).first(),
            exposed_ns=pl.col("exposed").sum(),
        )
        .sort("launched", maintain_order=True)
    )
    key = ("row", "group", "group_ranks", "peer", "collective")
    same = [pl.col(name) for name in key[:3]] + [
        pl.when(pl.col("peer").is_not_null()).then(pl.concat_str("collective", "peer")).otherwise(pl.lit(""))
    ]
    table = calls.select(
        pl.col("row").cast(pl.Int32),
        "collective",
        "group",
        description="group_description",
        members="group_ranks",
        size="group_size",
        sequence="sequence",
        ordinal=pl.int_range(pl.len()).over(same).cast(pl.Int32),
        peer=pl.col("peer").cast(pl.String),
        type="element_type",
        elements_in="elements_in",
        elements_out="elements_out",
        is_uneven=pl.col("is_uneven").fill_null(value=False),
        bytes="bytes",
        start_ns=pl.col("start_ns") + base,
        end_ns=pl.col("end_ns") + base,
        exposed_ns="exposed_ns",
    ).cast(COMMUNICATIONS)  # type: ignore[arg-type]
    return table, calls["device"].fill_null(NO_DEVICE)


def _exposed_parts(
    analysis: _Analysis, device: DeviceTimeline | None, calls: pl.DataFrame, on_device: pl.Series, base: int
) -> pl.DataFrame:
    """Return when the device only communicated, cut at the bounds of its steps."""
    if device is None or not calls.height:
        return pl.DataFrame(schema=EXPOSED)
    _, _, spans = _spans(analysis, device)
    start, end = (calls[name].to_numpy() - base for name in ("start_ns", "end_ns"))
    own = np.flatnonzero((on_device == device.device).to_numpy())
    own = own[np.argsort(start[own], kind="stable")]
    # Where several run at once, each nanosecond counts for the one that began first.
    ended = np.maximum.accumulate(end[own])
    begins = np.maximum(start[own], np.append(start[own][:1], ended[:-1]))
    real = begins < end[own]
    own, alone = own[real], Intervals(begins[real], end[own][real])
    compute = busy_parts(analysis.trace, device.device).compute
    if not len(alone):
        return pl.DataFrame(schema=EXPOSED)
    call, from_, to = alone.overlaps(compute.gaps(int(alone.start[0]), int(alone.end[-1])))
    # Steps of a device do not overlap, and are in order.
    step, part, from_, to = spans.overlapping(Intervals(from_, to))
    columns = {"row": step, "place": own[call[part]], "start_ns": from_ + base, "end_ns": to + base}
    return pl.DataFrame(columns, schema=EXPOSED)


def _told_of_kernels(trace: Trace) -> pl.DataFrame:
    """Return what is said of each kernel's collective: on the kernel, or on the call that it shares an id with.

    Where nothing is said of any, as by PyTorch before 2.2, it is what the kernels' names say: the operation alone.
    """
    if not trace.communications.height:
        return _named_collectives(trace)
    every = trace.communications.with_columns(pl.col(pl.Categorical).cast(pl.String))
    on_kernels = every.filter(pl.col("correlation").is_not_null())
    calls = every.filter(pl.col("correlation").is_null() & (pl.col("external_id") > 0))
    known = on_kernels.select("correlation", "start_ns")
    kernels = trace.activities.filter(pl.Series(communication_mask(trace.activities)))
    kernels = kernels.filter(pl.col("correlation").is_not_null())
    others = kernels.select("correlation", "external_id", "start_ns", "duration_ns").join(
        known, on=["correlation", "start_ns"], how="anti"
    )
    about = calls.drop("correlation", "start_ns", "duration_ns").unique("external_id", keep="first")
    through_calls = others.join(about, on="external_id", how="inner").select(every.columns)
    return pl.concat([on_kernels, through_calls])


def _named_collectives(trace: Trace) -> pl.DataFrame:
    kernels = trace.activities.filter(pl.Series(communication_mask(trace.activities)))
    names = kernels["name"].cast(pl.String)
    operations = {
        name: None if (kind := collective_of(name)) is None else NAMED.get(kind) for name in names.unique().to_list()
    }
    named = kernels.select("correlation", "external_id", "start_ns", "duration_ns").with_columns(
        collective=pl.Series([operations[name] for name in names.to_list()], dtype=pl.String)
    )
    return shaped("communications", named.filter(pl.col("collective").is_not_null())).with_columns(
        pl.col(pl.Categorical).cast(pl.String)
    )


def _differ(splits: str) -> pl.Expr:
    return pl.col(splits).str.extract_all(r"\d+").list.n_unique() > 1


def _computing(trace: Trace) -> dict[int, Intervals]:
    """Return per device when it computes or copies."""
    devices = trace.activities["device"].fill_null(NO_DEVICE).unique().to_list()
    return {device: busy_parts(trace, device).compute for device in devices}


def _exposed(trace: Trace, computing: dict[int, Intervals]) -> Ints:
    """Return per activity how much of it passes while its device does not compute."""
    start, end = column(trace.activities, "start_ns"), end_of(trace.activities)
    device = trace.activities["device"].fill_null(NO_DEVICE).to_numpy()
    exposed = end - start
    for number, compute in computing.items():
        rows = np.flatnonzero(device == number)
        exposed[rows] -= _covered(start[rows], end[rows], compute)
    return exposed


def _covered(start: Ints, end: Ints, by: Intervals) -> Ints:
    """Return per interval how much of it lies in a union."""
    before = np.append(0, np.cumsum(by.end - by.start))

    def until(moment: Ints) -> Ints:
        place = np.searchsorted(by.start, moment, side="right")
        # The last one that has begun may go on beyond the moment.
        over = np.maximum(np.append(0, by.end)[place] - moment, 0)
        covered: Ints = before[place] - np.where(place > 0, over, 0)
        return covered

    covered: Ints = until(end) - until(start)
    return covered


def _work(analysis: _Analysis, device: DeviceTimeline | None) -> pl.DataFrame:
    if device is None:
        return pl.DataFrame(schema=WORK)
    activities = analysis.trace.activities
    _, _, spans = _spans(analysis, device)
    middle = column(activities, "start_ns") + (end_of(activities) - column(activities, "start_ns")) // 2
    row = latest_around(spans.start, spans.end, middle)
    linked = linked_activities(analysis.trace, analysis.links).with_columns(row=row)
    computes = ~busy_parts(analysis.trace, None).communicates
    own = (linked["device"].fill_null(device.device) == device.device).to_numpy()
    keys = ["row", "operator", "kernel", "grid", "dims"]
    return (
        linked.filter(pl.Series(computes & own & (row >= 0)))
        .rename({"name": "kernel", "input_dims": "dims"})
        .group_by(keys)
        .agg(calls=pl.len(), total_ns=pl.col("duration_ns").sum())
        .sort("total_ns", descending=True)
        .head(_MOST_WORK)
        .sort(keys)
        .select(list(WORK))
        .cast(WORK)  # type: ignore[arg-type]
    )


def _gaps(analysis: _Analysis, device: DeviceTimeline | None, table: pl.DataFrame) -> pl.DataFrame:
    if device is None:
        return pl.DataFrame(schema=GAPS)
    gaps = longest_gaps(analysis.trace, Places(analysis.trace, analysis.links), (device,))
    # By time: the numbers of steps may come again.
    spans = (
        device.steps
        if table.height
        else Intervals(np.array([device.window.start_ns]), np.array([device.window.end_ns]))
    )
    middle = np.array([gap.start_ns + gap.duration_ns // 2 for gap in gaps], np.int64)
    rows = latest_around(spans.start, spans.end, middle).tolist() if gaps else []
    return pl.DataFrame(
        [
            (row, gap.cause, gap.duration_ns, gap.operator, gap.annotation, gap.module, gap.python, gap.call)
            for row, gap in zip(rows, gaps, strict=True)
            if row >= 0
        ],
        schema=GAPS,
        orient="row",
    )


def _pauses(analysis: _Analysis, table: pl.DataFrame) -> pl.DataFrame:
    if not table.height:
        return pl.DataFrame(schema=PAUSES)
    trace = analysis.trace
    steps = Intervals(column(table, "start_ns"), column(table, "end_ns"))
    runs = Intervals.union_of(
        np.concatenate([column(trace.operators, "start_ns"), analysis.host.start]),
        np.concatenate([end_of(trace.operators), analysis.host.end]),
    )
    step, start, end = steps.overlaps(runs.gaps(int(steps.start.min()), int(steps.end.max())))
    pauses = pl.DataFrame({"row": step, "start_ns": start, "duration_ns": end - start}).filter(
        pl.col("duration_ns") > PAUSE_NS
    )
    pauses = pauses.sort("row", "duration_ns", descending=[False, True])
    longest = pauses.group_by("row", maintain_order=True).head(_MOST_PAUSES)
    middle = (longest["start_ns"] + longest["duration_ns"] // 2).to_numpy()
    thread = column(table, "thread")[longest["row"].to_numpy()]
    places = Places(trace, analysis.links).at(thread, middle)
    return longest.select(
        "row",
        "duration_ns",
        annotation=pl.Series([place.annotation for place in places], dtype=pl.String),
        module=pl.Series([place.module for place in places], dtype=pl.String),
        python=pl.Series([place.python for place in places], dtype=pl.String),
    ).cast(PAUSES)  # type: ignore[arg-type]


def _waits(analysis: _Analysis, table: pl.DataFrame) -> pl.DataFrame:
    drains = np.flatnonzero(analysis.host.drains)
    began = analysis.host.start[drains]
    step = np.zeros(len(began), np.int64)
    if table.height:
        step = latest_around(column(table, "start_ns"), column(table, "end_ns"), began)
    operator = pl.Series(analysis.links.launch_operator[drains], dtype=pl.Int64).replace(-1, None)
    names = analysis.trace.operators["name"].cast(pl.String).gather(operator)
    waits = pl.DataFrame({"row": pl.Series(step, dtype=pl.Int32), "operator": names})
    return (
        waits.filter(pl.col("row") >= 0)
        .group_by("row", "operator")
        .agg(calls=pl.len())
        .sort("row", "calls", "operator")
        .cast(WAITS)  # type: ignore[arg-type]
    )
