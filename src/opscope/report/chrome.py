"""A trace as Chrome trace events that every viewer shows whole: overlapping slices in lanes, names escaped, in parts.

Host threads and device streams are tracks; slices that overlap without nesting, which viewers drop, go to further
lanes of their track. Operators and activities carry their category, activities the operator that launched them.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from opscope.analysis.columns import column, end_of
from opscope.analysis.lanes import lanes_of
from opscope.analysis.links import Links, link
from opscope.analysis.nesting import Ints
from opscope.analysis.steps import activities_of_steps
from opscope.analysis.window import step_table
from opscope.errors import UsageError
from opscope.knowledge.categories import Classifier
from opscope.model import Trace
from opscope.report.text import printable

_LANES = 1_000_000  # thread ids of a track's lanes are apart from the next track's
_HOST, _OVERHEAD, _DEVICE = 1, 2, 1_000  # process ids: of the host, of the profiler, and of device 0
_HOST_TABLES = ("frames", "annotations", "operators", "launches")  # outer before inner where times are equal
_DIMENSIONS = re.compile(r"\d+(,\d+)*")
_TAIL = b"\n]}\n"


@dataclass(frozen=True, slots=True)
class _Event:
    """An encoded event and when it begins, in nanoseconds."""

    start: int
    text: bytes


def select_steps(trace: Trace, first: int, last: int) -> Trace:
    """Return the part of a trace that belongs to some steps: what they ran on the host, and what they launched.

    Raises:
        UsageError: the trace does not mark those steps.
    """
    steps = step_table(trace)
    chosen = steps.filter(pl.col("step").is_between(first, last))
    if not chosen.height:
        marked = ", ".join(str(number) for number in steps["step"]) or "none"
        raise UsageError(f"--steps {first}..{last}: the trace marks no such step; it marks {marked}")
    spans = list(zip(chosen["start_ns"].to_list(), chosen["end_ns"].to_list(), strict=True))

    def within(table: pl.DataFrame, time: str = "start_ns") -> pl.DataFrame:
        return table.filter(pl.any_horizontal([(pl.col(time) >= low) & (pl.col(time) < high) for low, high in spans]))

    return replace(
        trace,
        operators=within(trace.operators),
        launches=within(trace.launches),
        annotations=within(trace.annotations),
        frames=within(trace.frames),
        overheads=within(trace.overheads),
        allocations=within(trace.allocations, "time_ns"),
        activities=trace.activities[activities_of_steps(trace, link(trace), chosen)],
    )


def chrome_parts(trace: Trace, classifier: Classifier, max_bytes: int | None) -> Iterator[bytes]:
    """Yield the trace as one or more Chrome trace files, each of at most ``max_bytes``, split by time."""
    devices = json.dumps([{"id": item.index, "name": item.name} for item in trace.devices])
    head = f'{{"displayTimeUnit": "ms", "deviceProperties": {devices}, "traceEvents": [\n'.encode()
    names, events = _events(trace, classifier)
    opening = head + b",\n".join(names)
    least = len(opening) + max((len(event.text) for event in events), default=0) + 2 + len(_TAIL)
    if max_bytes is not None and max_bytes < least:
        raise UsageError(f"--max-size: a part of this trace takes at least {least:,} bytes")
    part, size = [opening], len(opening)
    for event in sorted(events, key=lambda event: event.start):
        if max_bytes is not None and len(part) > 1 and size + len(event.text) + 2 + len(_TAIL) > max_bytes:
            yield b",\n".join(part) + _TAIL
            part, size = [opening], len(opening)
        part.append(event.text)
        size += len(event.text) + 2
    yield b",\n".join(part) + _TAIL


def _events(trace: Trace, classifier: Classifier) -> tuple[list[bytes], list[_Event]]:
    links = link(trace)
    host_tables = [getattr(trace, name) for name in _HOST_TABLES]
    host_track = np.concatenate([column(table, "thread") for table in host_tables])
    host_lane = lanes_of(
        host_track,
        np.concatenate([column(table, "start_ns") for table in host_tables]),
        np.concatenate([end_of(table) for table in host_tables]),
    )
    host_tid = host_track * _LANES + host_lane
    ends = np.cumsum([table.height for table in host_tables])
    per_table = dict(zip(_HOST_TABLES, np.split(host_tid, ends[:-1]), strict=True))
    device, stream_track, streams = _streams(trace.activities)
    device_tid = stream_track * _LANES + lanes_of(
        stream_track, column(trace.activities, "start_ns"), end_of(trace.activities)
    )
    events = [
        *_plain(trace.frames, per_table["frames"], "python_function"),
        *_plain(trace.annotations, per_table["annotations"], "user_annotation"),
        *_operators(trace, per_table["operators"], classifier),
        *_launches(trace, per_table["launches"]),
        *_overheads(trace),
        *_allocations(trace),
        *_activities(trace, links, device, device_tid, classifier),
        *_flows(trace, links, per_table["launches"], device, device_tid),
    ]
    names = [*_host_names(trace, host_tid), *_device_names(trace, device, device_tid, streams)]
    return names, events


def _streams(activities: pl.DataFrame) -> tuple[Ints, Ints, list[str]]:
    """Number the (device, stream) pairs; return per activity device and number, and per number the stream's name."""
    pairs = activities.select(pl.col("device").fill_null(-1).cast(pl.Int64), pl.col("stream").fill_null(-1))
    known = pairs.unique(maintain_order=True).sort("device", "stream").with_row_index("track")
    track = pairs.join(known, on=["device", "stream"], how="left", maintain_order="left")["track"].cast(pl.Int64)
    return pairs["device"].to_numpy(), track.to_numpy(), [f"stream {number}" for number in known["stream"]]


def _microseconds(nanoseconds: int) -> str:
    """Write nanoseconds as microseconds with three decimals, exactly."""
    sign = "-" if nanoseconds < 0 else ""
    whole, part = divmod(abs(nanoseconds), 1_000)
    return f"{sign}{whole}.{part:03}"


def _slice(category: str, name: str, pid: int, tid: int, start: int, duration: int, args: str) -> _Event:
    text = (
        f'{{"ph": "X", "cat": "{category}", "name": {name}, "pid": {pid}, "tid": {tid}, "ts": {_microseconds(start)}, '
        f'"dur": {_microseconds(max(duration, 0))}, "args": {{{args}}}}}'
    )
    return _Event(start, text.encode())


def _encoded(names: pl.Series) -> list[str]:
    """Encode names as JSON, each distinct one once."""
    texts = names.cast(pl.String).fill_null("")
    known = {text: json.dumps(printable(text)) for text in texts.unique()}
    return [known[text] for text in texts]


def _columns(table: pl.DataFrame, *names: str) -> list[list[int | None]]:
    return [table[name].to_list() for name in names]


def _plain(table: pl.DataFrame, tids: Ints, category: str) -> Iterator[_Event]:
    times = _columns(table, "start_ns", "duration_ns")
    for name, tid, start, duration in zip(_encoded(table["name"]), tids.tolist(), *times, strict=True):
        yield _slice(category, name, _HOST, tid, start or 0, duration or 0, "")


def _categories(names: pl.Series, classifier: Classifier) -> list[str]:
    texts = names.cast(pl.String).fill_null("")
    known = {text: json.dumps(str(classifier.classify(text).category)) for text in texts.unique()}
    return [known[text] for text in texts]


# What later analyses need: argument -> column.
_OPERATOR_NUMBERS = {
    "External id": "external_id",
    "Sequence number": "sequence_number",
    "Fwd thread id": "forward_thread",
    "Input Dims": "input_dims",  # lists, as the JSON text that they were recorded as
    "Input type": "input_types",
    "Input Strides": "input_strides",
    "Concrete Inputs": "concrete_inputs",
}
_LAUNCH_NUMBERS = {"correlation": "correlation", "External id": "external_id"}
_ACTIVITY_NUMBERS = {
    "stream": "stream",
    "correlation": "correlation",
    "External id": "external_id",
    "graph id": "graph_id",
    "graph node id": "graph_node_id",
    "bytes": "bytes",
    "registers per thread": "registers_per_thread",
    "shared memory": "shared_memory_bytes",
    "est. achieved occupancy %": "theoretical_occupancy_percent",
}
_ALLOCATION_NUMBERS = {
    "Device Type": "device_type",
    "Device Id": "device",
    "Bytes": "bytes",
    "Total Allocated": "total_allocated_bytes",
}


def _arguments(table: pl.DataFrame, columns: Mapping[str, str]) -> Iterator[str]:
    """Yield per row the arguments that are known, as they stand in JSON."""
    values = [table[column].cast(pl.String) for column in columns.values()]
    for row in zip(*values, strict=True):
        yield ", ".join(f'"{key}": {value}' for key, value in zip(columns, row, strict=True) if value is not None)


def _operators(trace: Trace, tids: Ints, classifier: Classifier) -> Iterator[_Event]:
    table = trace.operators
    names, categories = _encoded(table["name"]), _categories(table["name"], classifier)
    times = _columns(table, "start_ns", "duration_ns")
    files = zip(_encoded(table["kernel_file"]), table["kernel_file"].is_not_null(), strict=True)
    rows = zip(names, categories, tids.tolist(), _arguments(table, _OPERATOR_NUMBERS), files, *times, strict=True)
    for name, category, tid, arguments, (file, generated), start, duration in rows:
        args = f'"category": {category}' + (f", {arguments}" if arguments else "")
        args += f', "kernel_file": {file}' if generated else ""
        yield _slice("cpu_op", name, _HOST, tid, start or 0, duration or 0, args)


def _launches(trace: Trace, tids: Ints) -> Iterator[_Event]:
    table = trace.launches
    times = _columns(table, "start_ns", "duration_ns")
    rows = zip(_encoded(table["name"]), tids.tolist(), _arguments(table, _LAUNCH_NUMBERS), *times, strict=True)
    for name, tid, arguments, start, duration in rows:
        yield _slice("cuda_runtime", name, _HOST, tid, start or 0, duration or 0, arguments)


def _overheads(trace: Trace) -> Iterator[_Event]:
    """Yield the profiler's own records on a track of their own; they name no thread."""
    times = _columns(trace.overheads, "start_ns", "duration_ns")
    for name, start, duration in zip(_encoded(trace.overheads["name"]), *times, strict=True):
        yield _slice("overhead", name, _OVERHEAD, 0, start or 0, duration or 0, "")


def _allocations(trace: Trace) -> Iterator[_Event]:
    table = trace.allocations
    threads, times = column(table, "thread") * _LANES, column(table, "time_ns")
    for tid, time, arguments in zip(
        threads.tolist(), times.tolist(), _arguments(table, _ALLOCATION_NUMBERS), strict=True
    ):
        text = (
            f'{{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": {_HOST}, "tid": {tid}, '
            f'"ts": {_microseconds(time)}, "args": {{{arguments}}}}}'
        )
        yield _Event(time, text.encode())


def _activities(trace: Trace, links: Links, device: Ints, tids: Ints, classifier: Classifier) -> Iterator[_Event]:
    table = trace.activities
    owner = pl.Series(links.activity_operator).replace(-1, None)
    operators = trace.operators["name"].cast(pl.String).gather(owner)
    kinds = table["kind"].cast(pl.String).replace({"memcpy": "gpu_memcpy", "memset": "gpu_memset"})
    known = zip(_encoded(operators), _categories(operators, classifier), owner.is_not_null(), strict=True)
    collective = zip(_encoded(table["collective"]), table["collective"].is_not_null(), strict=True)
    places = zip(_geometry(table["grid"]), _geometry(table["block"]), collective, strict=True)
    arguments = _arguments(table, _ACTIVITY_NUMBERS)
    times = _columns(table, "start_ns", "duration_ns")
    rows = zip(
        _encoded(table["name"]), kinds, device.tolist(), tids.tolist(), known, places, arguments, *times, strict=True
    )
    for name, kind, number, tid, (operator, category, linked), place, numbers, start, duration in rows:
        grid, block, (collective_name, collects) = place
        args = [f'"device": {number}', numbers] if numbers else [f'"device": {number}']
        args += [f'"operator": {operator}, "category": {category}'] if linked else []
        args += [f'"grid": {grid}'] if grid else []
        args += [f'"block": {block}'] if block else []
        args += [f'"Collective name": {collective_name}'] if collects else []
        yield _slice(kind, name, _DEVICE + number, tid, start or 0, duration or 0, ", ".join(args))


def _geometry(column_of: pl.Series) -> Iterator[str | None]:
    """Yield grids or blocks as JSON lists; what is no list of numbers as null."""
    for text in column_of.cast(pl.String):
        yield f"[{text}]" if text is not None and _DIMENSIONS.fullmatch(text) else None


def _flows(trace: Trace, links: Links, launch_tids: Ints, device: Ints, tids: Ints) -> Iterator[_Event]:
    """Yield an arrow from every launch to each of its activities."""
    launched = np.flatnonzero(links.activity_launch >= 0)
    rows = links.activity_launch[launched]
    begins, starts = column(trace.launches, "start_ns")[rows], column(trace.activities, "start_ns")[launched]
    arrows = zip(
        launched.tolist(), begins.tolist(), launch_tids[rows].tolist(),
        starts.tolist(), device[launched].tolist(), tids[launched].tolist(), strict=True,
    )  # fmt: skip
    for number, begin, launch_tid, start, on, tid in arrows:
        common = f'"cat": "ac2g", "name": "launch", "id": {number}'
        from_ = f'"pid": {_HOST}, "tid": {launch_tid}, "ts": {_microseconds(begin)}'
        to = f'"pid": {_DEVICE + on}, "tid": {tid}, "ts": {_microseconds(start)}'
        yield _Event(begin, f'{{"ph": "s", {common}, {from_}}}'.encode())
        yield _Event(start, f'{{"ph": "f", "bp": "e", {common}, {to}}}'.encode())


def _name(what: str, pid: int, tid: int, name: str) -> bytes:
    args = json.dumps({"name": printable(name)})
    return f'{{"ph": "M", "name": "{what}", "pid": {pid}, "tid": {tid}, "args": {args}}}'.encode()


def _lane_names(pid: int, tids: Ints, name_of: Callable[[int], str]) -> Iterator[bytes]:
    for tid in np.unique(tids).tolist():
        track, lane = divmod(tid, _LANES)
        yield _name("thread_name", pid, tid, name_of(track) + (f" (lane {lane + 1})" if lane else ""))


def _host_names(trace: Trace, tids: Ints) -> Iterator[bytes]:
    yield _name("process_name", _HOST, 0, "host")
    if trace.overheads.height:
        yield _name("process_name", _OVERHEAD, 0, "profiler")

    def thread(number: int) -> str:
        process, name = (text.strip('"') for text in trace.threads[number])
        return f"process {process}, thread {name}"

    yield from _lane_names(_HOST, tids, thread)


def _device_names(trace: Trace, device: Ints, tids: Ints, streams: Sequence[str]) -> Iterator[bytes]:
    known = {item.index: item.name for item in trace.devices}
    for number in np.unique(device).tolist():
        pid = _DEVICE + number
        yield _name("process_name", pid, 0, f"device {number} ({known.get(number, 'unknown')})")
        yield from _lane_names(pid, tids[device == number], lambda track: streams[track])
