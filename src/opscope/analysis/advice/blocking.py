"""Rules on waits: calls in which the host waits for a value, a copy or nothing, and streams that wait for others."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, Range, Remedy, idle_claim
from opscope.analysis.advice.remedies import without_calls, without_waits
from opscope.analysis.advice.rule import RuleDescription, derived, measured, nanoseconds, seen, share_of, states
from opscope.analysis.advice.small_copies import small_copies_of
from opscope.analysis.idle.host_time import HostTime
from opscope.analysis.idle.steps import PAUSES
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.api_masks import calls_of, calls_that, names_that
from opscope.analysis.structure.arrays import Intervals, column, count_distinct, end_of
from opscope.analysis.structure.nesting import Bools, Ints, nearest
from opscope.base.text import or_unknown
from opscope.base.units import format_ns, format_times
from opscope.documents.findings import Rule, Source
from opscope.documents.verdict import BoundKind
from opscope.knowledge.api_calls import ApiKind, api_call
from opscope.knowledge.collectives import Direction, direction_of
from opscope.knowledge.devices import Assumed
from opscope.trace.model import Trace

# ---------------------------------------------------------------- streams that wait for each other


@states(
    RuleDescription(
        Rule.STREAM_DEPENDENCY,
        "queued work that waits for other streams; copies on a stream of their own that take turns with work by events",
        "0 to all of it",
        of_host=True,
    ),
)
def stream_dependency(context: Context) -> Iterator[Draft]:
    """Find a device that waits although work is queued: for another stream, device or copy."""
    if context.trace.activities.select("device", "stream").n_unique() == 1:
        return  # nothing else in this program is seen to run: what the work waits for, the trace does not say
    # Idle time beside other devices' work belongs to devices_take_turns.
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
            derived(share_of(time, context.step_ns), f" {context.words.of_the}", source=Source.IDLE),
            *seen(context, where),
        ),
        todo="let streams wait only if they must",
        action="let streams wait for each other's results only where they use them: two buffers instead of one, events "
        "recorded right after what is needed",
        wrong_if="the work really needs what it waits for",
        claims=idle_claim(BoundKind.DEPENDENCY),
        remedy=without_guards(context),
        pieces=np.flatnonzero(pieces),
    )


def without_guards(context: Context) -> Remedy:
    """Return the change that lets streams go on without waits that only guard a buffer, as far as names tell.

    A copy to the device before what reads it is data flow, and so is work before the copy of its result to the host.
    The other way round, a wait only keeps a buffer from being written too early. Between kernels no trace tells.
    """
    writes = names_that(context.trace.activities, lambda name: direction_of(name) is Direction.TO_DEVICE)
    reads = names_that(context.trace.activities, lambda name: direction_of(name) is Direction.TO_HOST)

    def apply(edit: Edit, assumed: Assumed) -> int:
        edges, before, after = edit.waits_of_streams()
        guards = edges[writes[after] | reads[before]]
        if assumed is Assumed.LOW:
            chosen = guards[::2]
        else:
            chosen = guards if len(guards) and assumed is Assumed.LIKELY else edges
        edit.let_run_on(chosen)
        return len(edges)

    return Remedy(
        "no waits of streams that only guard a buffer (low: half of them), or where there are none, and for high, no "
        "waits for other streams at all: what they are for, no trace tells",
        apply,
    )


# ---------------------------------------------------------------- calls that block


# Operators that return a value of the device to Python, or need one to size their result.
_READS: Final = frozenset(
    {
        *("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal"),
        *("aten::masked_select", "aten::unique", "aten::_unique2", "aten::unique_consecutive", "aten::tolist"),
        *("aten::_unique", "aten::unique_dim"),
        *("aten::repeat_interleave", "aten::bincount", "aten::allclose", "aten::copy_", "aten::to"),
    }
)


# Those that size their own result or choose their kernel by the value: no argument keeps them from reading it.
_NEEDED: Final = frozenset(
    {
        *("aten::bincount", "aten::unique", "aten::_unique", "aten::_unique2", "aten::unique_dim"),
        "aten::unique_consecutive",
    }
)


class _Waiting(Struct, frozen=True):
    """Why the host waits for the device, and what to do about it.

    Attributes:
        why: ends the title of the finding.
        todo: what to do, as in `opscope.analysis.advice.context.Draft`.
        action: what to do in PyTorch.
        of_cuda: what to do in a CUDA program without PyTorch.
        wrong_if: what would make the finding wrong.
    """

    why: str
    todo: str
    action: str
    of_cuda: str
    wrong_if: str


PIN: Final = "x = x.pin_memory().to(device, non_blocking=True)  # DataLoader(pin_memory=True)"


PINNED: Final = "pin the host's memory (cudaHostAlloc, cudaHostRegister) and copy with cudaMemcpyAsync"


_WAITING: Final = {
    Rule.BLOCKING_READ: _Waiting(
        "to read a value ",
        "read fewer values",
        "keep the value on the device and read it once, after the loop (losses.append(loss.detach()))",
        "keep the value on the device, or copy it with cudaMemcpyAsync into pinned memory and wait where it is used",
        "what the host does next depends on the value",
    ),
    Rule.BLOCKING_COPY: _Waiting(
        "until it has copied pageable memory ",
        "pin memory, copy asynchronously",
        f"{PIN}; make what is small on the device (device=...)",
        PINNED,
        "the memory is written to again before the copy is done",
    ),
    Rule.EXPLICIT_SYNC: _Waiting(
        "",
        "remove synchronize() from the loop",
        "remove torch.cuda.synchronize() and event.synchronize() from the loop; time with events that are read "
        "afterwards",
        "remove cudaDeviceSynchronize, cudaStreamSynchronize and cudaEventSynchronize from the loop; time with events "
        "that are read afterwards",
        "something outside needs the result",
    ),
}


@states(
    RuleDescription(
        Rule.BLOCKING_READ,
        "waits within `.item()`, `.cpu()`, `nonzero`, masks, ... between a step's launches",
        "the step less the longer of device work and the host's own time",
        "the wait ends the step",
        of_host=True,
    ),
    RuleDescription(
        Rule.EXPLICIT_SYNC,
        "such waits outside any operator, not those of the allocator",
        "the same",
        "the wait ends the step, or found the device idle",
        of_host=True,
    ),
)
def waits_for_the_device(context: Context) -> Iterator[Draft]:
    """Find calls between a step's launches in which the host waits for the device: to read a value, or explicitly."""
    calls = _waits_within_steps(context)
    for rule, chosen in _by_reason(context, calls).items():
        waited = _found_work(context, chosen)
        # Idle time after these calls, and idle time inside those that really waited.
        pieces = np.isin(context.waits.after, chosen) | np.isin(context.waits.idle.call, chosen[waited])
        pieces &= ~context.waits.kinds[BoundKind.UNKNOWN]
        # A call that found the device idle did not keep the host from working: other work after it has another cause.
        idly = np.isin(context.waits.after, chosen[~waited])
        pieces &= ~(idly & np.logical_or.reduce([context.waits.kinds[kind] for kind in PAUSES]))
        if not pieces.any():
            continue
        saving = context.of_waiting(pieces)
        after = context.waits.after[pieces]
        lengths = context.waits.lengths[pieces]
        # The finding points at the call before the longest piece; if no piece follows a call, at the first call.
        own = np.isin(after, chosen)
        worst = int(after[np.argmax(np.where(own, lengths, -1))]) if own.any() else int(chosen[0])
        where = context.where_of_call(worst)
        reads = rule is Rule.BLOCKING_READ
        needed = _made_within(context, chosen, _NEEDED) & reads
        number, matter = _times_waited(context, chosen) / context.steps, _WAITING[rule]
        todo, action = _advice(context, rule, chosen, needed, number)
        yield Draft(
            rule=rule,
            title=f"The host waits for the device {format_times(number)} times {context.words.each} {matter.why}"
            f"({or_unknown(where.call if rule is Rule.EXPLICIT_SYNC else where.operator)})",
            where=where,
            saving=Range(0.0, saving.high, saving.likely) if needed.any() else saving,
            derivation=f"{context.words.the} less the longer of the device's work and the host's own time: "
            "without the waits the "
            "host issues launches while the device works",
            evidence=(
                derived(
                    "the device idles ",
                    nanoseconds(float(lengths.sum()) / context.steps),
                    f" {context.words.each} after these waits",
                    source=Source.IDLE,
                ),
                derived(
                    "the host's own time is ",
                    nanoseconds(context.host_ns.low),
                    " to ",
                    nanoseconds(context.host_ns.high),
                    f" {context.words.each}, the device's work ",
                    nanoseconds(context.busy_ns),
                    source=Source.ESTIMATE,
                ),
                *seen(context, where),
            ),
            todo=todo,
            action=action,
            wrong_if=matter.wrong_if,
            remedy=_without_waiting(context, rule, chosen, needed),
            pieces=np.flatnonzero(pieces),
            claims=idle_claim(BoundKind.DISPATCH) | idle_claim(BoundKind.BLOCKING) | context.claims_of_pieces(pieces),
        )


def _advice(context: Context, rule: Rule, calls: Ints, needed: Bools, times: float) -> tuple[str, str]:
    """Return what to do about waits in a few words, and in whole."""
    if rule is Rule.BLOCKING_READ and context.runs_pytorch:
        by_mask = _made_within(context, calls, _MASKS)
        if needed.all():
            return "use operators that read nothing", _ACTION_WHERE_NEEDED
        if by_mask.any() and (by_mask | needed).all():
            return "avoid waiting for a mask's count", _ACTION_ON_MASKS
    return _todo(context, rule, times), _action(context, rule)


def _without_waiting(context: Context, rule: Rule, calls: Ints, needed: Bools) -> Remedy:
    """Return the change that lets the host go on instead of waiting.

    Args:
        context: what rules look at.
        rule: which finding it is.
        calls: the calls that wait.
        needed: per call whether an operator cannot do without: at the low end that stays.
    """
    if rule is Rule.EXPLICIT_SYNC:
        return Remedy("these calls are not made", without_calls(calls))
    if rule is Rule.BLOCKING_COPY:
        return Remedy("the host goes on while these copies run; they take as long", without_waits(calls))
    of_launch = context.links.launch_operator
    copies = np.flatnonzero(names_that(context.trace.activities, lambda name: direction_of(name) is Direction.TO_HOST))
    launch = context.links.activity_launch[copies]
    # An operator that reads a value copies it in one call and may wait in another.
    with_them = np.isin(launch, calls) | (np.isin(of_launch[launch], of_launch[calls]) & (of_launch[launch] >= 0))
    read = copies[(launch >= 0) & with_them]

    def apply(edit: Edit, assumed: Assumed) -> int:
        if needed.all() and assumed is Assumed.LOW:
            return len(calls)
        result = edit.cut_waits(calls[~needed] if assumed is Assumed.LOW else calls)
        if assumed is not Assumed.LOW:
            edit.remove_work(read)
            edit.remove_calls(calls)
        return result

    low = "the copies stay, and operators that need the value" if needed.any() else "the copies stay"
    return Remedy(f"the host does not wait, and nothing is copied (low: {low})", apply)


def _made_within(context: Context, calls: Ints, names: frozenset[str]) -> Bools:
    """Tell per call whether it is made inside an operator of some names."""
    result: Bools = np.append(_within(context, names), False)[context.links.launch_operator[calls]]
    return result


def _within(context: Context, names: frozenset[str]) -> Bools:
    """Tell per operator whether it is one of some names, or runs inside one."""
    own = names_that(context.trace.operators, lambda name: name in names)
    result: Bools = nearest(context.links.operators.parent, own) >= 0
    return result


@states(
    RuleDescription(
        Rule.BLOCKING_CALL,
        "other calls in which the host sits while the device has nothing to do",
        "0 to that idle time",
        "another rule explains the call",
        of_host=True,
    ),
)
def blocking_calls(context: Context) -> Iterator[Draft]:
    """Find calls of the API that take long while the device has nothing to do, and that no other rule explains."""
    # `waits_for_the_device` explains calls that really waited; the others are left for this rule.
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
        title=f"The host sits in calls like {or_unknown(where.call)} for {format_ns(time)} {context.words.of}, and "
        "nothing is queued",
        where=where,
        saving=Range(0.0, time).within(context.step_ns),
        derivation="the device's idle time while the host sits in these calls (high)",
        evidence=(
            measured("the longest such wait took ", nanoseconds(longest), source=Source.IDLE),
            derived(share_of(time, context.step_ns), f" {context.words.of_the}", source=Source.IDLE),
            *seen(context, where),
        ),
        todo="make that call earlier",
        action=_other_than_sitting(where.call),
        wrong_if="what follows needs the result of the call",
        claims=idle_claim(BoundKind.BLOCKING),
        pieces=rows,
    )


def _todo(context: Context, rule: Rule, times: float) -> str:
    """Return what to do in a few words: of reads, how many there are."""
    if rule is not Rule.BLOCKING_READ or not context.evidence.steps:
        return _WAITING[rule].todo
    return (
        f"stop reading {format_times(times)} values a step" if times >= _SEVERAL else "stop reading a value each step"
    )


_SEVERAL: Final = 1.5  # rounded, that is two


def _action(context: Context, rule: Rule) -> str:
    """Return advice on a wait: only a step that trains has losses to keep, only a server samples tokens."""
    matter = _WAITING[rule]
    if not context.runs_pytorch:
        return matter.of_cuda
    if rule is Rule.BLOCKING_READ and context.serves:
        return "keep sampled tokens on the device, and read them while the next iteration runs"
    if rule is Rule.BLOCKING_READ and not context.trains:
        return "keep the value on the device, and read it only where the host cannot go on without it"
    return matter.action


_ACTION_WHERE_NEEDED: Final = (
    "use an operator that needs no value on the host: zeros(size).scatter_add_(0, x, ones) counts, and a mask can mark "
    "duplicates that stay"
)


# What counts the entries that a mask keeps.
_MASKS: Final = frozenset({"aten::nonzero", "aten::masked_select"})
_ACTION_ON_MASKS: Final = (
    "a mask as an index waits for how many entries it keeps: torch.where(mask, x, 0) keeps the shape, and "
    "torch.nonzero_static(mask, size=...) takes a number that is known"
)


def _other_than_sitting(call: str | None) -> str:
    """Return advice on a call that takes long."""
    if call is not None and "GraphLaunch" in call:
        return (
            "upload the graph before (cudaGraphUpload), replay it once before the steps, or launch it while an earlier "
            "one still runs"
        )
    if call is not None and api_call(call).enqueues:
        return "issue it earlier, so that other work is queued while the call goes on"
    return "make that call outside of the step, or on another thread; where nothing needs it, leave it out"


def _times_waited(context: Context, calls: Ints) -> int:
    """Return how often the host waited; an operator that copies and then waits for the copy counts once."""
    operator = context.links.launch_operator[calls]
    return count_distinct(operator, context.trace.operators.height) + int((operator < 0).sum())


def _waits_within_steps(context: Context) -> Ints:
    """Return the calls that wait for the device and have a launch after them in the same step.

    The last wait of a step ends the step and does not count.
    """
    launches, host = context.trace.launches, context.host
    waits = np.flatnonzero(host.drains & ~calls_of(launches, ApiKind.FREE))
    enqueues = np.sort(host.start[calls_that(launches, lambda call: call.enqueues)])
    steps = context.device.steps
    waits = waits[np.argsort(host.start[waits], kind="stable")]
    step = np.searchsorted(steps.start, host.start[waits], side="right") - 1
    # A call before the first step (-1) has no end of a step to come before: any later launch will do.
    none = np.iinfo(np.int64).max
    end = np.where(step >= 0, np.append(steps.end, none)[step], none)
    following = np.append(enqueues, none)[np.searchsorted(enqueues, host.end[waits])]
    return waits[(following < none) & (following < end)]


def _by_reason(context: Context, calls: Ints) -> dict[Rule, Ints]:
    """Divide calls that wait by their reason, without those that are left to the rules on copies."""
    copies, frees = _pageable_launches(context), followed_by_free(context.trace, context.host)
    calls = calls[~copies[calls]]
    small = context.links.activity_launch[small_copies_of(context)]
    many = context.links.launch_operator[small]  # left to the rule on small copies, waits included
    calls = calls[~np.isin(context.links.launch_operator[calls], many[many >= 0])]
    of_launches = context.links.launch_operator
    operator = of_launches[calls]
    # An operator that copies pageable memory waits once more, in a call of its own.
    copying = np.isin(operator, of_launches[copies]) & (operator >= 0)
    # -1, no operator, picks the appended False.
    within = np.append(_within(context, _READS), False)[operator]
    # Before it frees memory the allocator waits for the device: that is not a wait of the program's own.
    explicit = (operator < 0) & ~frees[calls]
    by_reason = {
        Rule.BLOCKING_READ: calls[within & ~copying],
        Rule.BLOCKING_COPY: calls[copying],
        Rule.EXPLICIT_SYNC: calls[explicit],
    }
    return {rule: rows for rule, rows in by_reason.items() if len(rows)}


_WAITED: Final = 0.2  # of a call: the rest is the way into the driver and back


def _found_work(context: Context, calls: Ints) -> Bools:
    """Tell per call whether the device worked for at least `_WAITED` of it, so that the host really waited."""
    start, end = context.host.start[calls], context.host.end[calls]
    activities = context.trace.activities
    busy = Intervals.union_of(column(activities, "start_ns"), end_of(activities))
    first = np.searchsorted(busy.end, start, side="right")
    last = np.searchsorted(busy.start, end, side="left")
    # Differences of running sums give the busy intervals that a call touches; what of the first and the last of them
    # lies outside of the call is taken off again.
    total = np.append(0, np.cumsum(busy.end - busy.start))
    within = total[np.maximum(last, first)] - total[first]
    inside = first < last
    begins = np.append(busy.start, 0)[np.minimum(first, len(busy.start))]
    ends = np.append(0, busy.end)[last]
    within -= np.where(inside, np.maximum(start - begins, 0) + np.maximum(ends - end, 0), 0)
    result: Bools = inside & (within >= _WAITED * (end - start))
    return result


def followed_by_free(trace: Trace, host: HostTime) -> Bools:
    """Tell per call whether the next one of its thread frees memory."""
    launches = trace.launches
    order = np.lexsort((host.start, host.thread))
    frees = calls_of(launches, ApiKind.FREE)[order]
    same = np.append(host.thread[order][1:] == host.thread[order][:-1], False)
    result = np.zeros(len(order), np.bool_)
    result[order] = np.append(frees[1:], False) & same
    return result


def _pageable_launches(context: Context) -> Bools:
    """Tell per call whether it copies pageable memory to the device."""
    result = np.zeros(context.trace.launches.height, np.bool_)
    launch = context.links.activity_launch
    result[launch[context.uploads_pageable & (launch >= 0)]] = True
    return result
