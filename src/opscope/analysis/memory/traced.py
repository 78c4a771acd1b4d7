"""Memory as a trace of PyTorch's profiler records it: joined with a snapshot of the same steps, or in place of one.

A trace has operators, modules and the threads of autograd; a snapshot has segments and lines of Python. Both record the
same requests, and addresses, sizes and the time between them tell which entry of the one is which of the other.
"""

import re
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.memory.autocast import UNFUSED_ATTENTION
from opscope.analysis.memory.case import AllocatingOperators, Case
from opscope.analysis.memory.stacks import Part, Stack, StackTable, line_of, stacks_of
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of
from opscope.analysis.structure.autograd import BackwardPass
from opscope.analysis.structure.links import Links, link, operators_of_allocations
from opscope.analysis.structure.modules import MODULE_FRAME, Origins
from opscope.analysis.structure.nesting import nearest
from opscope.trace.model import DeviceProperties, Trace
from opscope.trace.snapshot import Action, Annotation, DeviceMemory, Events, Frame, Ints, Snapshot, Stacks, Traced

_CUDA: Final = 1  # c10::DeviceType
_STEPS: Final = ("ProfilerStep#", "Optimizer.step#")
_FRAME: Final = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)")  # as PyTorch names frames
_NUMBER: Final = re.compile(r"_\d+$")  # of a module among those of its class
_LOSSES: Final = frozenset({"aten::cross_entropy_loss", "aten::nll_loss", "aten::nll_loss_nd", "aten::log_softmax"})
_FIRST_BFLOAT16: Final = 8
_COMPARED: Final = 64  # entries, by which the place of a trace in a snapshot is recognised
_TRIED: Final = 20  # times as many, if those at the beginning are not there
_SAME_TIME_US: Final = 20.0  # both clocks are one, read twice; an operator that allocates takes some microseconds
_MOST_OF_THEM: Final = 0.98
_ALIKE: Final = 0.9  # of these: threads may be out of order by a little


class Recorded(Struct, frozen=True):
    """A trace, as far as it says where memory was allocated.

    Attributes:
        trace: the trace.
        links: its links.
        origins: the modules and lines of its operators.
        backward: its backward pass.
    """

    trace: Trace
    links: Links
    origins: Origins
    backward: BackwardPass


def recorded_in(trace: Trace) -> Recorded:
    """Look at a trace that is not analysed further."""
    links = link(trace)
    backward = BackwardPass.of(trace, links)
    return Recorded(trace, links, Origins.of(trace, backward), backward)


# ---------------------------------------------------------------- a trace alone


def cases_of_trace(recorded: Recorded) -> tuple[Case, ...]:
    """Return all that a trace says of the memory of GPUs; nothing where totals or addresses were not recorded."""
    rows = _of_gpus(recorded)
    totals = pl.all_horizontal(
        pl.col("total_allocated_bytes", "total_reserved_bytes").is_not_null().all().over("device")
    )
    rows = rows.filter(totals)
    if not rows.height:
        return ()
    places = _Places(recorded)
    table = StackTable.of(places.stacks, has_native=False)
    groups = sorted(rows.group_by("device", maintain_order=True), key=lambda one: str(one[0]))
    devices = tuple(_memory_of(recorded.trace, int(str(device)), group, places) for (device,), group in groups)
    calls = [
        _calls(recorded, places.owner[group["row"].to_numpy()], group["time_ns"].to_numpy()) for _, group in groups
    ]
    source = recorded.trace.source
    empty = Stacks(np.empty(0, np.int32), np.zeros(len(table.stacks), np.int64))
    snapshot = Snapshot(source.path, devices, (), empty, (0,), (), {}, source.size_bytes)
    return tuple(Case(snapshot, memory, table, call) for memory, call in zip(devices, calls, strict=True))


def _calls(recorded: Recorded, operator: Ints, time_ns: Ints) -> AllocatingOperators:
    """Return the operators of some events, at their times in the trace, and when the backward pass comes to them."""
    backward, operators = recorded.backward, recorded.trace.operators
    nodes = np.flatnonzero(backward.node == np.arange(operators.height))  # what the engine evaluates
    nodes = nodes[backward.own_sequence[nodes] >= 0]
    nodes = nodes[np.argsort(backward.own_sequence[nodes], kind="stable")]
    numbers = np.append(backward.own_sequence[nodes], np.iinfo(np.int64).max)
    begin = np.searchsorted(np.maximum.accumulate(time_ns), column(operators, "start_ns")[nodes])
    wanted = np.where(np.append(backward.inside, True)[operator], -1, np.append(backward.sequence, -1)[operator])
    at = np.searchsorted(numbers, wanted)
    until = np.where(numbers[at] == wanted, np.append(begin, -1)[at], -1)
    in_parts = nearest(recorded.links.operators.parent, names_that(operators, UNFUSED_ATTENTION.__eq__))
    attention = np.append(backward.through_forward(in_parts), -1)[operator]
    has_bfloat16 = all(map(_has_bfloat16, recorded.trace.devices))
    return AllocatingOperators(operator, until, attention, operators, has_bfloat16=has_bfloat16)


def _has_bfloat16(device: DeviceProperties) -> bool:
    """Tell whether Tensor Cores multiply bfloat16: NVIDIA's from compute capability 8.0 on; others are not known."""
    major = (device.compute_capability or "").partition(".")[0]
    return not major.isdecimal() or int(major[:4]) >= _FIRST_BFLOAT16


def _of_gpus(recorded: Recorded) -> pl.DataFrame:
    """Return the recorded events of GPUs that have an address, in order, each with its row in the trace."""
    allocations = recorded.trace.allocations.with_row_index("row")
    events = allocations.filter(pl.col("device_type") == _CUDA).with_columns(pl.col("device").fill_null(0))
    events = events.drop_nulls(["bytes", "address"]).filter(pl.col("bytes") != 0)
    return events.sort("time_ns", maintain_order=True)


def _memory_of(trace: Trace, device: int, events: pl.DataFrame, places: "_Places") -> DeviceMemory:
    size, total = events["bytes"].to_numpy(), events["total_allocated_bytes"].to_numpy()
    reserved = events["total_reserved_bytes"].to_numpy()
    time_us = events["time_ns"].to_numpy() // 1_000
    count = events.height
    return DeviceMemory(
        device=device,
        events=Events(
            action=np.where(size > 0, Action.ALLOC, Action.FREED).astype(np.uint8),
            address=events["address"].to_numpy(),
            bytes=np.abs(size),
            stream=np.zeros(count, np.uint16),
            time_us=time_us,
            stack=places.of_allocation[events["row"].to_numpy()].astype(np.uint32),
            context=np.zeros(count, np.uint32),
        ),
        segments=(),
        annotations=tuple(_annotations(trace)),
        traced=Traced(
            allocated=np.concatenate(([total[0] - size[0]], total)), reserved=np.concatenate((reserved[:1], reserved))
        ),
    )


def _annotations(trace: Trace) -> list[Annotation]:
    """Return the ranges that end steps."""
    ranges = trace.annotations
    rows = np.flatnonzero(names_that(ranges, lambda name: name.startswith(_STEPS)))
    return [
        Annotation(str(ranges["name"][int(row)]), is_begin=False, time_us=int(end_of(ranges)[row]) // 1_000)
        for row in rows
    ]


class _Places:
    """Where a trace's allocations were made, as stacks.

    Attributes:
        stacks: one for each place; the first is of none.
        of_allocation: per row of the trace's allocations, its place.
    """

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        trace = recorded.trace
        self.owner = operators_of_allocations(trace, recorded.links)
        parts = self._parts()
        module, frame = (np.append(rows, -1)[self.owner] for rows in (recorded.origins.module, recorded.origins.frame))
        # Layers are of one place, as the allocations of all of them repeat: a module counts by its class.
        classes = trace.frames["name"].cast(pl.String).str.replace(_NUMBER.pattern, "").cast(pl.Categorical)
        of_module = np.append(classes.to_physical().cast(pl.Int64).to_numpy(), -1)[module]
        codes = (_codes(trace.operators, self.owner), of_module, _codes(trace.frames, frame))
        keys = np.stack((*codes, parts), axis=1)
        unique, first, place = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        self.of_allocation: Ints = place.reshape(-1) + 1
        names = [
            (_name(trace.operators, self.owner[at]), _name(trace.frames, module[at]), _name(trace.frames, frame[at]))
            for at in first.tolist()
        ]
        self.stacks = (
            Stack(Part.NONE, None, None, None, None, (), ()),
            *(_stack(Part(int(row[3])), *name) for row, name in zip(unique, names, strict=True)),
        )

    def _parts(self) -> Ints:
        """Return per allocation its `Part`s: by autograd's engine, by PyTorch's ranges, by modules and operators."""
        trace, backward = self._recorded.trace, self._recorded.backward
        time, owner = column(trace.allocations, "time_ns"), self.owner
        inside = np.append(backward.inside, False)[owner]
        parts: Ints = np.where(inside, int(Part.BACKWARD), 0)
        for prefix, part in (
            ("Optimizer.step#", Part.OPTIMIZER | Part.OF_TORCH),
            ("Optimizer.zero_grad#", Part.ZERO_GRADIENTS),
        ):
            rows = np.flatnonzero(names_that(trace.annotations, lambda name, prefix=prefix: name.startswith(prefix)))  # type: ignore[misc]
            begin, end = column(trace.annotations, "start_ns")[rows], end_of(trace.annotations)[rows]
            parts |= np.where(Intervals.union_of(begin, end).holds(time, time), int(part), 0)
        # Outside of modules, what autograd records is a forward pass, too.
        module = np.append(self._recorded.origins.module, -1)[owner] >= 0
        numbered = np.append(backward.sequence, -1)[owner] >= 0
        parts |= np.where((module | numbered) & (parts == 0), int(Part.FORWARD), 0)
        losses = nearest(self._recorded.links.operators.parent, names_that(trace.operators, _LOSSES.__contains__))
        parts |= np.where(np.append(losses, -1)[owner] >= 0, int(Part.LOSS), 0)
        return parts


def _codes(table: pl.DataFrame, rows: Ints) -> Ints:
    """Return a number for the name of each row; -1 for none."""
    codes: Ints = np.append(table["name"].to_physical().cast(pl.Int64).to_numpy(), -1)[rows]
    return codes


def _name(table: pl.DataFrame, row: int) -> str | None:
    return None if row < 0 else str(table["name"][int(row)])


def _stack(parts: Part, operator: str | None, module: str | None, frame: str | None) -> Stack:
    match = None if frame is None else _FRAME.fullmatch(frame)
    innermost = None if match is None else Frame(match["function"], match["file"], int(match["line"]))
    lines = () if innermost is None else ((innermost.file, innermost.function, innermost.line),)
    line = frame if innermost is None else line_of(innermost)
    modules = None if module is None else _NUMBER.sub("", module.removeprefix(MODULE_FRAME))
    return Stack(parts, line, frame, modules, operator, lines, lines)


# ---------------------------------------------------------------- a snapshot and a trace


def joined_cases(snapshot: Snapshot, recorded: Recorded) -> tuple[tuple[Case, ...], str | None]:
    """Return all that is known of each device of a snapshot, with the operators and modules of a trace.

    Args:
        snapshot: of the steps that the trace has, or more.
        recorded: the trace, with memory.

    Returns:
        The devices, and why they have no operators; None where they have.
    """
    table = stacks_of(snapshot)
    allocated = _of_gpus(recorded).filter(pl.col("bytes") > 0)
    places = _Places(recorded)
    devices, calls, joined, known = [], [], 0, 0
    for memory in snapshot.devices:
        group = allocated.filter(pl.col("device") == memory.device)
        pairs = _paired(memory, group)
        joined, known = joined + pairs.height, known + group.height
        table, with_operators = _with_operators(memory, table, recorded, places, pairs)
        devices.append(with_operators)
        operator = np.full(len(memory.events), -1, np.int64)
        operator[pairs["entry"].to_numpy()] = places.owner[pairs["row"].to_numpy()]
        shift_us = pairs["shift_us"][0] if pairs.height else 0.0
        calls.append(_calls(recorded, operator, ((memory.events.time_us - shift_us) * 1_000).astype(np.int64)))
    whole = replace(snapshot, devices=tuple(devices))
    apart = None
    if not joined:
        apart = "The trace of these steps could not be joined with the snapshot: operators are unknown."
    elif joined < _MOST_OF_THEM * known:
        apart = f"Only {joined:,} of {known:,} allocations in the trace were joined with the snapshot."
    return tuple(Case(whole, memory, table, call) for memory, call in zip(devices, calls, strict=True)), apart


def _paired(memory: DeviceMemory, group: pl.DataFrame) -> pl.DataFrame:
    """Return which allocation in a trace is which entry of a snapshot: ``row``, ``entry``, ``shift_us``.

    Both have the time, on clocks that differ by a constant, which follows from where addresses, sizes and the time
    between them agree. Then each has the entry of its address at its time; what one of them has lost stays alone.
    """
    nothing = pl.DataFrame(schema={"row": pl.Int64, "entry": pl.Int64, "shift_us": pl.Float64})
    rows = np.flatnonzero(memory.events.action == Action.ALLOC)
    known = pl.DataFrame(
        {
            "entry": rows,
            "address": memory.events.address[rows],
            "requested": memory.events.bytes[rows],
            "known_us": memory.events.time_us[rows].astype(np.float64),
        }
    )
    shift = _shift_us(known, group)
    if shift is None:
        return nothing
    timed = group.select(pl.col("row").cast(pl.Int64), "address", "bytes", time_us=pl.col("time_ns") / 1_000 + shift)
    pairs = timed.sort("time_us").join_asof(
        known.sort("known_us"), left_on="time_us", right_on="known_us", by="address", strategy="nearest",
        tolerance=_SAME_TIME_US, check_sortedness=False,
    )  # fmt: skip
    pairs = pairs.filter(pl.col("requested") <= pl.col("bytes")).with_columns(
        apart=(pl.col("time_us") - pl.col("known_us")).abs(), shift_us=pl.lit(shift)
    )
    pairs = pairs.sort("apart").unique("entry", keep="first", maintain_order=True).select(nothing.columns)
    return pl.concat((pairs, _between(pairs, timed, known, shift))).sort("row")


def _between(pairs: pl.DataFrame, timed: pl.DataFrame, known: pl.DataFrame, shift: float) -> pl.DataFrame:
    """Pair what both have once between the same two pairs: a request that waited for the device has another time."""
    paired = np.sort(pairs["entry"].to_numpy())
    ordered = timed.sort("time_us").join(pairs.select("row", "entry"), on="row", how="left", maintain_order="left")
    before = ordered["entry"].fill_null(strategy="forward").fill_null(-1).to_numpy()
    alone = ordered.with_columns(gap=np.searchsorted(paired, before, "right")).filter(pl.col("entry").is_null())
    free = known.join(pairs, on="entry", how="anti")
    free = free.with_columns(gap=np.searchsorted(paired, free["entry"].to_numpy()))
    place = ["address", "gap"]
    both = alone.drop("entry").unique(place, keep="none").join(free.unique(place, keep="none"), on=place)
    return both.filter(pl.col("requested") <= pl.col("bytes")).select("row", "entry", shift_us=pl.lit(shift))


def _shift_us(known: pl.DataFrame, group: pl.DataFrame) -> float | None:
    """Return how much later the snapshot's clock is than the trace's; None where the two have nothing in common."""
    address, requested, time_us = (known[name].to_numpy() for name in ("address", "requested", "known_us"))
    for begin in range(0, min(group.height, _COMPARED * _TRIED), _COMPARED):
        head = group[begin : begin + _COMPARED]
        wanted, sizes, at_us = (head[name].to_numpy() for name in ("address", "bytes", "time_ns"))
        starts = np.flatnonzero(address[: max(len(address) - len(head) + 1, 0)] == wanted[0])
        alike, apart = np.zeros(len(starts)), np.zeros(len(starts))
        for place in range(len(head)):
            there = starts + place
            late = np.abs(time_us[there] - time_us[starts] - (at_us[place] - at_us[0]) / 1_000)
            alike += (address[there] == wanted[place]) & (requested[there] <= sizes[place]) & (late <= _SAME_TIME_US)
            apart += late
        fitting = np.flatnonzero(alike >= _ALIKE * len(head))
        if len(fitting):
            # Of steps that are alike to the microsecond the last ones: a snapshot is taken where its trace ends.
            start = int(starts[fitting[apart[fitting] <= apart[fitting].min()][-1]])
            return float(np.median(time_us[start : start + len(head)] - at_us / 1_000))
    return None


def _with_operators(
    memory: DeviceMemory, table: StackTable, recorded: Recorded, places: _Places, pairs: pl.DataFrame
) -> tuple[StackTable, DeviceMemory]:
    """Give the entries of a snapshot the operators of a trace."""
    if not pairs.height:
        return table, memory
    entries, rows = pairs["entry"].to_numpy(), pairs["row"].to_numpy()
    stack = memory.events.stack.astype(np.int64)
    forward = _forward_stacks(recorded, places.owner[rows], stack[entries])
    both = np.stack((stack[entries], places.of_allocation[rows], forward), axis=1)
    unique, number = np.unique(both, axis=0, return_inverse=True)
    added = tuple(_both(table.stacks, places.stacks, *row) for row in unique.tolist())
    stack[entries] = len(table.stacks) + number.reshape(-1)
    shift = round(pairs["shift_us"][0])
    notes = memory.annotations or tuple(
        replace(one, time_us=one.time_us + shift) for one in _annotations(recorded.trace)
    )
    events = replace(memory.events, stack=stack.astype(np.uint32))
    whole = StackTable.of((*table.stacks, *added), has_native=table.has_native)
    same_as = np.concatenate((table.same_as, table.same_as[unique[:, 0]]))
    return replace(whole, same_as=same_as), replace(memory, events=events, annotations=notes)


def _forward_stacks(recorded: Recorded, owner: Ints, stack: Ints) -> Ints:
    """Return for operators of the backward pass the stack of the forward operator that they belong to; else -1."""
    known = np.full(recorded.trace.operators.height, -1, np.int64)
    forward = (owner >= 0) & ~np.append(recorded.backward.inside, False)[owner]
    known[owner[forward]] = stack[forward]
    # A sequence number is of the outermost operator, and its own operators allocate.
    parent = recorded.links.operators.parent
    for row in range(len(known) - 1, -1, -1):
        above = int(parent[row])
        if above >= 0 and known[above] < 0 <= known[row]:
            known[above] = known[row]
    through = np.append(recorded.backward.through_forward(known), -1)
    result: Ints = np.where(np.append(recorded.backward.inside, False)[owner], through[owner], -1)
    return result


def _both(stacks: tuple[Stack, ...], places: tuple[Stack, ...], stack: int, place: int, forward: int) -> Stack:
    """Return a stack of a snapshot with what a trace adds; in the backward pass the line of the forward pass."""
    own, traced = stacks[stack], places[place]
    line = own.line if own.line is not None or forward < 0 else stacks[forward].line
    parts = own.parts | (traced.parts & (Part.BACKWARD | Part.LOSS))
    modules = traced.modules or own.modules or (stacks[forward].modules if forward >= 0 else None)
    return replace(own, parts=parts, line=line, modules=modules, operator=traced.operator or own.operator)
