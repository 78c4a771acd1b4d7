"""Rules on what keeps the device waiting."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from opscope.analysis.advice.context import (
    LEAST_SHARE,
    Context,
    Draft,
    Range,
    derived,
    general,
    idle_claim,
    measured,
)
from opscope.analysis.advice.small_copies import small_copies_of
from opscope.analysis.api import calls_of, calls_that, names_that
from opscope.analysis.bounds import BUSY_SHARE
from opscope.analysis.columns import column, end_of
from opscope.analysis.host_time import LULL_NS
from opscope.analysis.intervals import Intervals
from opscope.analysis.nesting import Bools, Ints, nearest
from opscope.analysis.step_evidence import STACKS
from opscope.documents.bound import BoundKind
from opscope.documents.findings import Fact, Rule, Where
from opscope.knowledge.api_calls import ApiKind, api_call
from opscope.knowledge.copies import Direction, direction_of, is_pageable
from opscope.units import format_bytes, format_ns, format_share

# Operators that hand a value of the device to Python, or need one to know how large their result is.
_READS: Final = frozenset(
    {
        *("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal"),
        *("aten::masked_select", "aten::unique", "aten::_unique2", "aten::unique_consecutive", "aten::tolist"),
        *("aten::repeat_interleave", "aten::bincount", "aten::allclose", "aten::copy_", "aten::to"),
    }
)
_LEAST_COMPILING_NS: Final = 1e6  # looking whether compiled code still fits takes less
_LOOKED_AT: Final = 1_000  # copies
_OVER_THE_BUS: Final = (Direction.TO_DEVICE, Direction.TO_HOST)
_STACKS: Final = "record stacks to see the line (with_stack=True, opscope profile --with-stack)"


def _seen(context: Context, where: Where) -> tuple[Fact, ...]:
    """State where the host was, or how to find out."""
    places = [place for place in (where.python, where.module, where.annotation, where.operator) if place]
    if places:
        return (measured(f"the host was in {', '.join(places)}"),)
    if context.cost is STACKS or not context.runs_pytorch:
        return ()
    return (general(f"where was not recorded: {_STACKS}"),)


def dispatch_bound(context: Context) -> Iterator[Draft]:
    """Find a device that waits for launches to be issued."""
    idle = context.idle_for(BoundKind.DISPATCH)
    all_of_it = float(context.waits.by_kind.get(BoundKind.DISPATCH, 0))
    if idle.high < LEAST_SHARE * context.step_ns or not all_of_it:
        return
    issued = context.links.activity_launch[context.work]
    launches = len(np.unique(issued[issued >= 0])) / context.steps
    longest = context.where_of_pieces(np.flatnonzero(context.waits.kinds[BoundKind.DISPATCH]))
    # A graph has gaps of its own, of about a microsecond.
    gaps = min(launches * 1_000.0, idle.high / 2)
    own = 1 - context.waits.drained_ns / all_of_it
    waited = context.waited_for(BoundKind.DISPATCH)
    # Of a step that is captured, short pauses between its launches go as well.
    pauses = context.waits.kinds[BoundKind.HOST_WORK] & (context.waits.lengths < LULL_NS)
    high = idle.high + context.idle_in(pauses)
    # The first launch of a step takes as long with a graph.
    kept = max(1 - 1 / max(launches, 1.0), 0.0)
    alone = launches < 2 and context.busy_ns < BUSY_SHARE * context.step_ns
    saving = Range(
        0.5 * own * kept * (idle.low - gaps), high if alone else high * kept, own * kept * (idle.likely - gaps)
    )
    yield Draft(
        rule=Rule.DISPATCH_BOUND,
        title=f"The device waits {format_ns(waited)} {context.words.of} for the host to issue {launches:,.0f} launches",
        where=replace(longest, call=None),
        saving=saving.within(context.step_ns),
        derivation="the idle time before launches that the host issues without pause, with its short pauses (high), "
        "but for that before the first of them; less a microsecond a launch, half of what does not follow a wait (low)",
        evidence=(
            measured(
                f"{launches:,.0f} launches {context.words.each}, {format_ns(context.busy_ns / max(launches, 1))} "
                "of work each"
            ),
            derived(f"{format_share(waited, context.step_ns)} {context.words.of_the} the device waits for them"),
            *(
                [derived(f"{format_ns(idle.high)} of that can be left without the profiler, which slows the host down")]
                if idle.high < 0.99 * waited
                else []
            ),
        ),
        action=_issue_faster(context, alone=alone),
        wrong_if="shapes or control flow change from step to step, so that no graph can be replayed",
        claims=idle_claim(BoundKind.DISPATCH) | (idle_claim(BoundKind.HOST_WORK) if pauses.any() else frozenset()),
    )


def _issue_faster(context: Context, *, alone: bool) -> str:
    """Say what makes launches come in time; ``alone``: where a step has one only."""
    if alone:
        return "issue the next step's launch before the host waits for this one, so that the device has work queued"
    if context.runs_pytorch:
        return "step = torch.compile(step, mode='reduce-overhead')  # or capture a CUDA graph: torch.cuda.graph"
    return "capture the launches in a CUDA graph (cudaStreamBeginCapture) and replay it, or launch fewer kernels"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Why the host waits for the device, and what to do about it: in PyTorch, and in CUDA without it."""

    why: str
    action: str
    of_cuda: str
    wrong_if: str


_PIN: Final = "x = x.pin_memory().to(device, non_blocking=True)  # DataLoader(pin_memory=True)"
_PINNED: Final = "pin the host's memory (cudaHostAlloc, cudaHostRegister) and copy with cudaMemcpyAsync"
_WAITING: Final = {
    Rule.BLOCKING_READ: _Waiting(
        "to read a value ",
        "keep the value on the device and read it once, after the loop (losses.append(loss.detach()))",
        "keep the value on the device, or copy it with cudaMemcpyAsync into pinned memory and wait where it is used",
        "what the host does next depends on the value",
    ),
    Rule.BLOCKING_COPY: _Waiting(
        "until it has copied pageable memory ",
        f"{_PIN}; make what is small on the device (device=...)",
        _PINNED,
        "the memory is written to again before the copy is done",
    ),
    Rule.EXPLICIT_SYNC: _Waiting(
        "",
        "remove torch.cuda.synchronize() and event.synchronize() from the loop; time with events that are read "
        "afterwards",
        "remove cudaDeviceSynchronize, cudaStreamSynchronize and cudaEventSynchronize from the loop; time with events "
        "that are read afterwards",
        "something outside needs the result",
    ),
}


def waits_for_the_device(context: Context) -> Iterator[Draft]:
    """Find calls between a step's launches in which the host waits for the device: to read a value, or explicitly."""
    calls = _waits_within_steps(context)
    for rule, chosen in _by_reason(context, calls).items():
        waited = _found_work(context, chosen)
        pieces = np.isin(context.waits.after, chosen) | np.isin(context.waits.idle.call, chosen[waited])
        pieces &= ~context.waits.kinds[BoundKind.UNKNOWN]
        # A call that found the device idle did not keep the host from working: its other work has another cause.
        idly = np.isin(context.waits.after, chosen[~waited])
        pieces &= ~(idly & (context.waits.kinds[BoundKind.HOST_WORK] | context.waits.kinds[BoundKind.INPUT]))
        if not pieces.any():
            continue
        saving = context.of_waiting(pieces)
        after = context.waits.after[pieces]
        lengths = context.waits.lengths[pieces]
        mine = np.isin(after, chosen)
        worst = int(after[np.argmax(np.where(mine, lengths, -1))]) if mine.any() else int(chosen[0])
        where = context.where_of_call(worst)
        number, matter = _times_waited(context, chosen) / context.steps, _WAITING[rule]
        yield Draft(
            rule=rule,
            title=f"The host waits for the device {number:,.1f} times {context.words.each} {matter.why}"
            f"({where.call if rule is Rule.EXPLICIT_SYNC else where.operator})",
            where=where,
            saving=saving,
            derivation=f"{context.words.the} less the longer of the device's work and the host's own time: "
                       "without the waits the "
            "host issues launches while the device works",
            evidence=(
                derived(f"the device idles {format_ns(float(lengths.sum()) / context.steps)} {context.words.each} "
                        "after these waits"),
                derived(f"the host's own time is {format_ns(context.host_ns.low)} to {format_ns(context.host_ns.high)} "
                        f"{context.words.each}, the device's work {format_ns(context.busy_ns)}"),
                *_seen(context, where),
            ),
            action=matter.action if context.runs_pytorch else matter.of_cuda,
            wrong_if=matter.wrong_if,
            claims=idle_claim(BoundKind.DISPATCH) | idle_claim(BoundKind.BLOCKING) | context.claims_of_pieces(pieces),
        )  # fmt: skip


def blocking_calls(context: Context) -> Iterator[Draft]:
    """Find calls of the API that take long while the device has nothing to do, and that no other rule explains."""
    others = _by_reason(context, _waits_within_steps(context)).values()
    known = np.concatenate([np.empty(0, np.int64), *(calls[_found_work(context, calls)] for calls in others)])
    idle = context.waits.idle
    pieces = context.waits.kinds[BoundKind.BLOCKING] & (idle.call >= 0) & ~np.isin(idle.call, known)
    time = context.idle_in(pieces)
    if time < LEAST_SHARE * context.step_ns:
        return
    rows = np.flatnonzero(pieces)
    where = context.where_of_pieces(rows)
    longest = int(context.waits.lengths[rows].max())
    yield Draft(
        rule=Rule.BLOCKING_CALL,
        title=f"The host sits in calls like {where.call} for {format_ns(time)} {context.words.of}, and nothing is "
        "queued",
        where=where,
        saving=Range(0.0, time).within(context.step_ns),
        derivation="the device's idle time while the host sits in these calls (high)",
        evidence=(
            measured(f"the longest such wait took {format_ns(longest)}"),
            derived(f"{format_share(time, context.step_ns)} {context.words.of_the}"),
            *_seen(context, where),
        ),
        action=_other_than_sitting(where.call),
        wrong_if="what follows needs the result of the call",
        claims=idle_claim(BoundKind.BLOCKING),
    )


def _other_than_sitting(call: str | None) -> str:
    """Say what to do about a call that takes long."""
    if call is not None and "GraphLaunch" in call:
        return (
            "upload the graph before (cudaGraphUpload), replay it once before the steps, or launch it while an earlier "
            "one still runs"
        )
    if call is not None and api_call(call).enqueues:
        return "issue it earlier, so that other work is queued while the call goes on"
    return "make that call outside of the step, or on another thread; where nothing needs it, leave it out"


def _times_waited(context: Context, calls: Ints) -> int:
    """Return how often the host waited: an operator that copies and then waits for the copy does so once."""
    operator = context.links.launch_operator[calls]
    return len(np.unique(operator[operator >= 0])) + int((operator < 0).sum())


def _waits_within_steps(context: Context) -> Ints:
    """Return the calls that wait for the device, but for the last one of each step: that one ends the step."""
    launches, host = context.trace.launches, context.host
    waits = np.flatnonzero(host.drains & ~calls_of(launches, ApiKind.FREE))
    enqueues = np.sort(host.start[calls_that(launches, lambda call: call.enqueues)])
    steps = context.device.steps
    waits = waits[np.argsort(host.start[waits], kind="stable")]
    step = np.searchsorted(steps.start, host.start[waits], side="right") - 1
    none = np.iinfo(np.int64).max
    end = np.where(step >= 0, np.append(steps.end, none)[step], none)
    following = np.append(enqueues, none)[np.searchsorted(enqueues, host.end[waits])]
    return waits[(following < none) & (following < end)]


def _by_reason(context: Context, calls: Ints) -> dict[Rule, Ints]:
    """Divide calls that wait by why they do. How long copies of pageable memory take is another rule's matter."""
    copies, frees = _pageable_launches(context), _followed_by_free(context)
    calls = calls[~copies[calls]]
    small = context.links.activity_launch[small_copies_of(context)]
    many = context.links.launch_operator[small]  # another rule's matter, waits and all
    calls = calls[~np.isin(context.links.launch_operator[calls], many[many >= 0])]
    of_launches = context.links.launch_operator
    operator = of_launches[calls]
    # Such a copy waits once more, in a call of its own.
    copying = np.isin(operator, of_launches[copies]) & (operator >= 0)
    reads = names_that(context.trace.operators["name"], lambda name: name in _READS)
    reads = nearest(context.links.operators.parent, reads) >= 0
    within = np.append(reads, False)[operator]
    # The allocator waits for the device before it frees memory.
    explicit = (operator < 0) & ~frees[calls]
    by_reason = {
        Rule.BLOCKING_READ: calls[within & ~copying],
        Rule.BLOCKING_COPY: calls[copying],
        Rule.EXPLICIT_SYNC: calls[explicit],
    }
    return {rule: rows for rule, rows in by_reason.items() if len(rows)}


_WAITED: Final = 0.2  # of a call: the rest is the way into the driver and back


def _found_work(context: Context, calls: Ints) -> Bools:
    """Tell per call whether the device worked meanwhile, so that it was waited for."""
    start, end = context.host.start[calls], context.host.end[calls]
    activities = context.trace.activities
    busy = Intervals.union_of(column(activities, "start_ns"), end_of(activities))
    first = np.searchsorted(busy.end, start, side="right")
    last = np.searchsorted(busy.start, end, side="left")
    total = np.append(0, np.cumsum(busy.end - busy.start))
    within = total[np.maximum(last, first)] - total[first]
    inside = first < last
    begins = np.append(busy.start, 0)[np.minimum(first, len(busy.start))]
    ends = np.append(0, busy.end)[last]
    within -= np.where(inside, np.maximum(start - begins, 0) + np.maximum(ends - end, 0), 0)
    found: Bools = inside & (within >= _WAITED * (end - start))
    return found


def _followed_by_free(context: Context) -> Bools:
    """Tell per call whether the next one of its thread frees memory."""
    launches, host = context.trace.launches, context.host
    order = np.lexsort((host.start, host.thread))
    frees = calls_of(launches, ApiKind.FREE)[order]
    same = np.append(host.thread[order][1:] == host.thread[order][:-1], False)
    found = np.zeros(len(order), np.bool_)
    found[order] = np.append(frees[1:], False) & same
    return found


def _pageable_launches(context: Context) -> Bools:
    """Tell per call whether it copies pageable memory to the device."""
    activities = context.trace.activities
    result = np.zeros(context.trace.launches.height, np.bool_)
    pageable = names_that(
        activities["name"], lambda name: is_pageable(name) and direction_of(name) is Direction.TO_DEVICE
    )
    launch = context.links.activity_launch
    result[launch[pageable & (launch >= 0)]] = True
    return result


def copies(context: Context) -> Iterator[Draft]:
    """Find copies between the host and the device that nothing is computed beside, from pageable memory or not."""
    activities = context.trace.activities
    moves = names_that(activities["name"], lambda name: direction_of(name) in _OVER_THE_BUS)
    mine = context.work[moves[context.work]]
    start, end = column(activities, "start_ns"), end_of(activities)
    copies_of_any_kind = names_that(activities["name"], lambda name: direction_of(name) is not None)
    computes = np.flatnonzero(~copies_of_any_kind & (column(activities, "device") == context.device.device))
    working = Intervals.union_of(start[computes], end[computes])
    pageable = names_that(activities["name"], is_pageable)
    for rule, rows in (
        (Rule.BLOCKING_COPY, np.setdiff1d(mine[pageable[mine]], small_copies_of(context))),
        (Rule.EXPOSED_COPY, mine[~(pageable | _of_a_value(context))[mine]]),
    ):
        copying = Intervals.union_of(start[rows], end[rows]).within(context.device.window.spans)
        exposed = copying.length - copying.within(working).length
        time = exposed / context.steps
        if time < LEAST_SHARE * context.step_ns:
            continue
        depends = rule is Rule.EXPOSED_COPY and _streams_wait(context, rows)
        yield _copy(context, Rule.STREAM_DEPENDENCY if depends else rule, rows, time)


_VALUE_BYTES: Final = 16  # complex128 is the longest


def _of_a_value(context: Context) -> Bools:
    """Tell per activity whether it moves a single value: reading that is another rule's matter."""
    moved = context.trace.activities["bytes"].fill_null(_VALUE_BYTES + 1).to_numpy()
    found: Bools = moved <= _VALUE_BYTES
    return found


def _streams_wait(context: Context, copies: Ints) -> bool:
    """Tell whether some copies have a stream of their own, and streams are made to wait for each other."""
    activities = context.trace.activities
    kernels = (activities["kind"] == "kernel").to_numpy()
    mine = kernels & (column(activities, "device") == context.device.device)
    apart = not np.isin(column(activities, "stream")[copies], column(activities, "stream")[mine]).any()
    waits = names_that(context.trace.launches["name"], lambda name: "StreamWaitEvent" in name)
    return apart and int(waits.sum()) >= max(len(copies) // 2, 1)


def _copy(context: Context, rule: Rule, rows: Ints, time: float) -> Draft:
    activities = context.trace.activities
    longest = int(rows[np.argmax(column(activities, "duration_ns")[rows])])
    launch = int(context.links.activity_launch[longest])
    where = context.where_of_call(launch) if launch >= 0 else Where()
    moved = int(activities["bytes"].gather(rows).fill_null(0).sum())
    rate = moved / max(int(column(activities, "duration_ns")[rows].sum()), 1)  # bytes a nanosecond are GB/s
    pageable = rule is Rule.BLOCKING_COPY
    pinned = bool(activities["name"].gather(rows).cast(pl.String).str.contains("Pinned").all())
    # Pinned memory is copied at 20 GB/s at least (PCIe 4), and may overlap with the device's work altogether.
    certain = max(time * (1 - rate / 20), 0.0) if pageable else 0.0
    kind = next((name for name, holds in (("pageable", pageable), ("pinned", pinned)) if holds), "unknown")
    memory = "" if kind == "unknown" else f" of {kind} memory"
    directions = {direction_of(str(activities["name"][int(row)])) for row in rows[:_LOOKED_AT]}
    return Draft(
        rule=rule,
        title=f"Copies{memory} between host and device take {format_ns(time)} {context.words.of}, and nothing "
        "else runs",
        where=where,
        saving=context.of_device(certain, time),
        derivation="the time in which only these copies run (high)"
        + ("; less what pinned memory takes at 20 GB/s (low)" if pageable else ""),
        evidence=(
            measured(f"{len(rows) / context.steps:,.1f} copies {context.words.each}, "
                     f"{format_bytes(moved / context.steps)} at "
                     f"{rate:.3g} GB/s, longest {activities['name'][longest]}"),
            *_seen(context, where),
        ),
        action=_copy_better(context, rule, directions, pinned=pinned),
        wrong_if="the data exist only just before they are needed",
        claims=frozenset({f"copies: {kind}"}),
    )  # fmt: skip


_PINNING: Final = "x.pin_memory(), non_blocking=True"


def _copy_better(context: Context, rule: Rule, directions: set[Direction | None], *, pinned: bool) -> str:
    """Say how copies are hidden behind work, or made faster."""
    if rule is Rule.BLOCKING_COPY:
        return _copying(context, pageable_to_host=directions == {Direction.TO_HOST})
    if rule is Rule.STREAM_DEPENDENCY:
        return (
            "copies and work take turns on their streams: give them two buffers instead of one, and record events "
            "right after what the other stream needs"
        )
    action = "copy on a stream of its own while the step before computes, or keep it on the device"
    return (
        action if pinned else f"{action}; from pinned memory ({_PINNING if context.runs_pytorch else 'cudaHostAlloc'})"
    )


def _copying(context: Context, *, pageable_to_host: bool) -> str:
    """Say how copies of pageable memory are made faster."""
    if not context.runs_pytorch:
        return f"{_PINNED}; keep on the device what does not change"
    if not pageable_to_host:
        return f"{_PIN}; keep on the device what does not change"
    return (
        "reduce on the device what is copied (argmax, sums), or copy into a pinned buffer: "
        "buffer = torch.empty(x.shape, dtype=x.dtype, pin_memory=True); buffer.copy_(x, non_blocking=True)"
    )


def input_pipeline(context: Context) -> Iterator[Draft]:
    """Find a device that waits for a DataLoader."""
    yield from _waiting(
        context,
        BoundKind.INPUT,
        Rule.INPUT_PIPELINE,
        "The device waits {time} {words.of} for the next batch to be loaded",
        "DataLoader(..., num_workers=N, pin_memory=True, persistent_workers=True, prefetch_factor=4)",
        "the workers cannot load a batch in the time of a step",
        0.5,
    )


def host_work(context: Context) -> Iterator[Draft]:
    """Find a device that waits while the host does something that launches nothing."""
    computes = _computing_on_the_host(context)
    yield from _waiting(
        context,
        BoundKind.HOST_WORK,
        Rule.HOST_WORK,
        "The device waits {time} {words.of} while the host does other work"
        + (" (PyTorch's operators on tensors of the host)" if computes >= _MOSTLY else ""),
        "move the tensors to the device first (x = x.to(device)), or prepare them on another thread or process"
        if computes >= _MOSTLY
        else "move that work out of the step, onto the device, or onto another thread or process that works ahead",
        "what the device does next depends on it",
        # What operators compute on the host the device does in a small part of the time; of all else nobody knows.
        0.8 * computes + 0.5 * (1 - computes),
    )


_MOSTLY: Final = 0.8


def _computing_on_the_host(context: Context) -> float:
    """Return the share of the idle time behind other work in which operators run that launch nothing."""
    pieces = context.waits.idle.pieces.chosen(context.waits.kinds[BoundKind.HOST_WORK])
    operators = context.trace.operators
    if not pieces.length or not operators.height:
        return 0.0
    parent = context.links.operators.parent
    launching = np.zeros(operators.height, np.bool_)
    rows = np.unique(context.links.launch_operator)
    rows = rows[rows >= 0]
    while len(rows):
        launching[rows] = True
        rows = np.unique(parent[rows])
        rows = rows[(rows >= 0)]
        rows = rows[~launching[rows]]
    outside = (parent < 0) | np.append(launching, False)[parent]
    own = np.flatnonzero(~launching & outside)
    spans = Intervals.union_of(column(operators, "start_ns")[own], end_of(operators)[own])
    return pieces.within(spans).length / pieces.length


def _waiting(
    context: Context, kind: BoundKind, rule: Rule, title: str, action: str, wrong_if: str, certain: float
) -> Iterator[Draft]:
    idle = context.idle_for(kind)
    if idle.high < LEAST_SHARE * context.step_ns:
        return
    pieces = np.flatnonzero(context.waits.kinds[kind])
    where = context.where_of_pieces(pieces)
    longest = int(context.waits.lengths[pieces].max())
    yield Draft(
        rule=rule,
        title=title.format(time=format_ns(idle.high), words=context.words),
        where=where,
        saving=idle.times(certain, 1.0).within(context.step_ns),
        derivation=f"the device's idle time meanwhile (high), {certain:.0%} of it (low)",
        evidence=(
            measured(f"the longest such wait took {format_ns(longest)}"),
            derived(f"{format_share(idle.high, context.step_ns)} {context.words.of_the}"),
            *_seen(context, where),
        ),
        action=action,
        wrong_if=wrong_if,
        claims=idle_claim(kind),
    )


def allocator_churn(context: Context) -> Iterator[Draft]:
    """Find steps that allocate and free device memory over and over."""
    launches = context.trace.launches
    manages = calls_of(launches, ApiKind.ALLOCATE, ApiKind.FREE)
    inside = context.device.window.spans.holds(column(launches, "start_ns"), end_of(launches))
    calls = np.flatnonzero(manages & inside & ~context.host.cold)
    pieces = context.waits.kinds[BoundKind.ALLOCATION] | np.isin(context.waits.after, calls)
    time = context.idle_in(pieces)
    if not len(calls) or time < LEAST_SHARE * context.step_ns:
        return
    certain = context.idle_for(BoundKind.ALLOCATION).low
    longest = int(calls[np.argmax(column(launches, "duration_ns")[calls])])
    where = context.where_of_call(longest)
    busiest = launches["name"].gather(calls).cast(pl.String).value_counts(sort=True)["name"][0]
    yield Draft(
        rule=Rule.ALLOCATOR_CHURN,
        title=f"Memory is allocated or freed {len(calls) / context.steps:,.1f} times {context.words.each} ({busiest})",
        where=where,
        saving=Range(0.7 * certain, max(time, certain)).within(context.step_ns),
        derivation="the idle time in these calls (70 % of it: low), and after them until launches catch up (high)",
        evidence=(
            measured(f"the device waits {format_ns(time)} {context.words.of} for that"),
            general(
                "PyTorch's allocator keeps freed memory: once it has enough, no such call is needed"
                if context.runs_pytorch
                else "memory that is kept and used again needs no such call"
            ),
            *_seen(context, where),
        ),
        action=_keep_memory(context, str(busiest)),
        wrong_if="memory is needed by another process",
        claims=idle_claim(BoundKind.ALLOCATION) | context.claims_of_pieces(pieces),
    )


def _keep_memory(context: Context, call: str) -> str:
    """Say how memory is kept instead of being allocated again."""
    if "Host" in call:
        return (
            "pin memory once and copy into it: buffer = torch.empty(shape, pin_memory=True) before the loop"
            if context.runs_pytorch
            else "pin memory once, before the loop, and copy into it"
        )
    if context.runs_pytorch:
        return (
            "remove torch.cuda.empty_cache() from the loop; allocate what grows once, at its largest size; else "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    return (
        "allocate once, before the loop; or cudaMallocAsync from a pool that keeps freed memory "
        "(cudaMemPoolAttrReleaseThreshold)"
    )


def stream_dependency(context: Context) -> Iterator[Draft]:
    """Find a device that waits though work was queued: for another stream, device or copy."""
    pieces = context.waits.kinds[BoundKind.DEPENDENCY] & ~context.beside_others_work
    time = context.idle_in(pieces)
    if time < LEAST_SHARE * context.step_ns:
        return
    where = context.where_of_pieces(np.flatnonzero(pieces))
    yield Draft(
        rule=Rule.STREAM_DEPENDENCY,
        title=f"Queued work waits {format_ns(time)} {context.words.of} for other streams",
        where=where,
        saving=Range(0.0, time).within(context.step_ns),
        derivation="all of that idle time (high)",
        evidence=(
            derived(f"{format_share(time, context.step_ns)} {context.words.of_the}"),
            *_seen(context, where),
        ),
        action="let streams wait for each other's results only where they use them: two buffers instead of one, events "
        "recorded right after what is needed",
        wrong_if="the work really needs what it waits for",
        claims=idle_claim(BoundKind.DEPENDENCY),
    )


_COMPILING: Final = ("dynamo_timed", "compile_inner", "torch/_dynamo/convert_frame")


def recompilation(context: Context) -> Iterator[Draft]:
    """Find torch.compile at work within the steps."""
    ranges, first = [], []
    spans = context.device.window.spans
    for table in (context.trace.annotations, context.trace.frames):
        rows = np.flatnonzero(names_that(table["name"], lambda name: any(part in name for part in _COMPILING)))
        ranges.append((column(table, "start_ns")[rows], end_of(table)[rows]))
        inside = rows[spans.holds(column(table, "start_ns")[rows], end_of(table)[rows])]
        first.append(next(iter(table["name"].gather(inside[:1]).cast(pl.String)), None))
    start, end = (np.concatenate(parts) for parts in zip(*ranges, strict=True))
    compiling = Intervals.union_of(start, end).within(spans)
    time = recorded = compiling.length / context.steps
    waiting = context.waits.idle.pieces.within(compiling)
    whole = max(float(context.waits.lengths.sum()) / context.steps, 1.0)
    pieces = waiting.length / context.steps * min(context.least_idle_ns / whole, 1.0)
    if context.unprofiled_ns is not None:
        time = min(time, context.least_idle_ns)
    if time < LEAST_SHARE * context.step_ns or time < _LEAST_COMPILING_NS:
        return
    yield Draft(
        rule=Rule.RECOMPILATION,
        title=f"torch.compile compiles {context.words.during}, {format_ns(recorded)} {context.words.each}",
        where=Where(annotation=first[0], python=first[1]),
        saving=Range(0.7 * min(pieces, time), time, 0.95 * time).within(context.step_ns),
        derivation="the time in which the compiler runs, of an unprofiled step no more than its idle time (high), "
        "70 % of the device's idle time in it (low)",
        evidence=(measured(f"{format_ns(recorded)} {context.words.each} as recorded lie in ranges of the compiler"),),
        action="torch._dynamo.mark_dynamic(x, 0) or torch.compile(dynamic=True); pass changing numbers as tensors; "
        "TORCH_LOGS=recompiles names the guard that failed",
        wrong_if="these are the first steps: then it happens once",
        claims=idle_claim(BoundKind.HOST_WORK) | idle_claim(BoundKind.DISPATCH) | idle_claim(BoundKind.BLOCKING),
    )


def cold_start(context: Context) -> Iterator[Draft]:
    """Find code that is loaded, and contexts that are created, within the steps."""
    idle = context.waits.idle
    pieces = context.waits.kinds[BoundKind.COLD_START]
    # What the host does before, in the same gap, is most likely to find, read or compile that code.
    around = np.isin(idle.gap, idle.gap[pieces])
    certain, time = context.idle_in(pieces), context.idle_in(around)
    if time < LEAST_SHARE * context.step_ns:
        return
    where = context.where_of_pieces(np.flatnonzero(pieces))
    yield Draft(
        rule=Rule.COLD_START,
        title=f"Code is loaded, or a context created, {context.words.during}: the device waits "
        f"{format_ns(certain)} {context.words.of}",
        where=where,
        saving=Range(0.7 * certain, time, 0.8 * time).within(context.step_ns),
        derivation="the idle time of gaps in which code is loaded (high), 70 % of the loading itself (low)",
        evidence=(
            measured(f"{int(pieces.sum())} such waits in the recording"),
            derived(f"the gaps that they are part of take {format_ns(time)} {context.words.of}"),
            *_seen(context, where),
        ),
        action="profile later steps; if these count, run "
        f"{'each shape and operator' if context.runs_pytorch else 'each kernel'} once before them (warm-up), or load "
        "all code at the start (CUDA_MODULE_LOADING=EAGER)",
        wrong_if="these are the first steps: then it happens once",
        claims=idle_claim(BoundKind.COLD_START) | context.claims_of_pieces(around),
    )
