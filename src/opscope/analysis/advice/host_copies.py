"""Rules on copies between host and device during which nothing else runs."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.advice.blocking import PIN, PINNED, without_guards
from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, Remedy
from opscope.analysis.advice.remedies import scaled
from opscope.analysis.advice.rule import RuleDescription, count_of, measured, of_bytes, percent, seen, states
from opscope.analysis.advice.small_copies import small_copies_of
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.base.text import lazy_pattern, or_unknown
from opscope.base.units import format_ns
from opscope.documents.findings import Rule, Source, Where
from opscope.knowledge.collectives import Direction, direction_of, is_pageable
from opscope.knowledge.devices import PINNED_BYTES_PER_NS, Assumed

_LOOKED_AT: Final = 1_000  # copies


_OVER_THE_BUS: Final = (Direction.TO_DEVICE, Direction.TO_HOST)

_PINNED_SPEED: Final = 20  # GB/s at least: PCIe 4, sixteen lanes


@states(
    RuleDescription(
        Rule.BLOCKING_COPY,
        "copies of pageable memory beside which nothing runs; waits of the host until such a copy is done",
        f"what {_PINNED_SPEED} GB/s would save, to all of it; of the waits as `blocking_read`",
        "they overlap with work",
        of_host=True,
    ),
    RuleDescription(
        Rule.EXPOSED_COPY,
        "copies of pinned memory beside which nothing runs",
        "0 to all of it",
        "they overlap with work",
    ),
)
def copies(context: Context) -> Iterator[Draft]:
    """Find copies between host and device, of pageable memory or not, during which nothing is computed."""
    activities = context.trace.activities
    moves = names_that(activities, lambda name: direction_of(name) in _OVER_THE_BUS)
    own = context.work[moves[context.work]]
    start, end = column(activities, "start_ns"), end_of(activities)
    copies_of_any_kind = names_that(activities, lambda name: direction_of(name) is not None)
    computes = np.flatnonzero(~copies_of_any_kind & (column(activities, "device") == context.device.device))
    working = Intervals.union_of(start[computes], end[computes])
    pageable = names_that(activities, is_pageable)
    for rule, rows in (
        # Small copies and single values have rules of their own: they cost waits of the host, not time on the bus.
        (Rule.BLOCKING_COPY, np.setdiff1d(own[pageable[own]], small_copies_of(context))),
        (Rule.EXPOSED_COPY, own[~(pageable | _of_a_value(context))[own]]),
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
    """Tell per activity whether it moves a single value: another rule covers reading one."""
    # A copy of unknown size counts as more than a value.
    moved = context.trace.activities["bytes"].fill_null(_VALUE_BYTES + 1).to_numpy()
    result: Bools = moved <= _VALUE_BYTES
    return result


def _streams_wait(context: Context, copies: Ints) -> bool:
    """Tell whether the copies have a stream without kernels, and streams wait for events about as often."""
    activities = context.trace.activities
    kernels = (activities["kind"] == "kernel").to_numpy()
    own = kernels & (column(activities, "device") == context.device.device)
    apart = not np.isin(column(activities, "stream")[copies], column(activities, "stream")[own]).any()
    waits = names_that(context.trace.launches, lambda name: "StreamWaitEvent" in name)
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
    # Copies of pinned memory may overlap with the device's work altogether.
    certain = max(time * (1 - rate / _PINNED_SPEED), 0.0) if pageable else 0.0
    kind = next((name for name, holds in (("pageable", pageable), ("pinned", pinned)) if holds), "unknown")
    memory = "" if kind == "unknown" else f" of {kind} memory"
    directions = {direction_of(str(activities["name"][int(row)])) for row in rows[:_LOOKED_AT]}
    action = _copy_better(context, rule, directions, pinned=pinned)
    computed = _computed_on_host(context, rows)
    elsewhere = pageable and computed.after.any()
    if elsewhere:
        by = f"{computed.longest}, {format_ns(computed.took_ns)}"
        action = f"compute on the device what operators compute on the host ({by}); or {action}"
    return Draft(
        rule=rule,
        title=f"Copies{memory} between host and device take {format_ns(time)} {context.words.of}, and nothing "
        "else runs",
        where=where,
        saving=context.of_device(certain, time),
        derivation="the time in which only these copies run (high)"
        + (f"; less what pinned memory takes at {_PINNED_SPEED} GB/s (low)" if pageable else ""),
        evidence=(
            measured(
                count_of(len(rows) / context.steps, 1),
                f" copies {context.words.each}, ",
                of_bytes(moved / context.steps),
                f" at {rate:.3g} GB/s, longest {or_unknown(str(activities['name'][longest]))}",
                source=Source.ACTIVITIES,
            ),
            *seen(context, where),
        ),
        todo="keep it on the device: no copies" if elsewhere else _IN_SHORT.get(rule, "copy during the step before"),
        action=action,
        wrong_if="the data exist only just before they are needed",
        claims=frozenset({f"copies: {kind}"}),
        remedy=_remedy(context, rule, rows),
    )


def _remedy(context: Context, rule: Rule, rows: Ints) -> Remedy:
    """Return the change of copies: from pinned memory, beside other work, or without waits that guard a buffer."""
    if rule is Rule.STREAM_DEPENDENCY:
        return without_guards(context)
    return _pinned(context, rows) if rule is Rule.BLOCKING_COPY else _hidden(context, rows)


def _pinned(context: Context, rows: Ints) -> Remedy:
    """Return the change of copies to pinned memory (low, likely), or the change that keeps the data where they are."""
    moved = context.trace.activities["bytes"].gather(rows).fill_null(0).to_numpy()
    took = column(context.trace.activities, "duration_ns")[rows]
    calls = context.links.activity_launch[rows]
    calls = calls[calls >= 0]
    of_launch = context.links.launch_operator
    drains = context.host.drains & np.isin(of_launch, of_launch[calls]) & (of_launch >= 0)
    waits = np.flatnonzero(drains)
    computed = _computed_on_host(context, rows)

    def apply(edit: Edit, assumed: Assumed) -> int:
        if assumed is Assumed.HIGH or (assumed is Assumed.LIKELY and computed.after.any()):
            result = edit.remove_work(rows)
            gone = computed.operators if assumed is Assumed.HIGH else computed.after
            edit.remove_host_of(gone, _COMPUTED_ELSEWHERE[assumed])
        else:
            unknown = took / (1 if assumed is Assumed.LOW else _TIMES_SLOWER)
            known = np.where(moved > 0, moved / PINNED_BYTES_PER_NS[assumed], unknown)
            result = edit.take(rows, np.minimum(known, took).astype(np.int64))
        if assumed is not Assumed.LOW:
            edit.shorten_calls(np.union1d(calls, waits), _ISSUED_NS)
        return result

    low, likely, _ = PINNED_BYTES_PER_NS
    if computed.after.any():
        stays = percent(1 - _COMPUTED_ELSEWHERE[Assumed.LIKELY])
        how = (
            "what operators compute on the host is computed on the device, without such copies (low: copies of pinned "
            f"memory at {low:g} GB/s for which the host waits; likely: {stays} of the host's computation stays)"
        )
    else:
        how = (
            f"copies of pinned memory at {likely:g} GB/s that the host does not wait for (low: {low:g} GB/s, and it "
            "waits; high: no such copies"
            + (", and nothing that operators compute on the host)" if computed.operators.any() else ")")
        )
    return Remedy(how, apply, removes=bool(computed.operators.any()))


_COMPUTES_NS: Final = 30_000  # a view takes 5 to 20 us while stacks are recorded
_COMPUTED_ELSEWHERE: Final = {Assumed.LIKELY: 0.9, Assumed.HIGH: 1.0}  # of what the host computes
# What moves data on the host computes nothing that a device would take over.
_MOVES: Final = lazy_pattern(
    r"aten::(_?pin_memory|to|_to_copy|copy_|clone|contiguous|stack|cat|(empty|zeros|ones|full)(_\w+)?)$"
)


class _Computed(Struct, frozen=True):
    """What operators compute on the host, on threads that copy.

    Attributes:
        operators: per operator of the trace whether it computes for long and launches nothing; of those inside each
            other the outermost.
        after: of these, the ones after a copy to the host: likely it was made for them.
        longest: the name of the longest.
        took_ns: its time.
    """

    operators: Bools
    after: Bools
    longest: str = ""
    took_ns: int = 0


def _computed_on_host(context: Context, copies: Ints) -> _Computed:
    links, table = context.links, context.trace.operators
    calls = links.activity_launch[copies]
    launching = links.launch_operator[links.launch_operator >= 0]
    counts = links.operators.subtree_sums(np.bincount(launching, minlength=table.height))
    threads = np.unique(column(context.trace.launches, "thread")[calls[calls >= 0]])
    on_host = (counts == 0) & names_that(table, lambda name: name.startswith("aten::") and _MOVES.match(name) is None)
    duration = column(table, "duration_ns")
    on_host &= (duration >= _COMPUTES_NS) & np.isin(column(table, "thread"), threads)
    on_host &= ~np.append(on_host, False)[links.operators.parent]
    after = on_host & _after_copies_to_host(context, calls[calls >= 0])
    rows = np.flatnonzero(after)
    if not len(rows):
        return _Computed(on_host, after)
    longest = int(rows[np.argmax(duration[rows])])
    return _Computed(on_host, after, str(table["name"][longest]), int(duration[longest]))


def _after_copies_to_host(context: Context, calls: Ints) -> Bools:
    """Tell per operator whether the last copy on its thread before it is one to the host, in the same step."""
    operators, launches, steps = context.trace.operators, context.trace.launches, context.device.steps.start
    activities = context.trace.activities
    leaves = names_that(activities, lambda name: direction_of(name) is Direction.TO_HOST)
    to_host = np.zeros(launches.height, np.bool_)
    launched = context.links.activity_launch
    to_host[launched[leaves & (launched >= 0)]] = True
    start, thread = column(operators, "start_ns"), column(operators, "thread")
    begin, of_thread = column(launches, "start_ns")[calls], column(launches, "thread")[calls]
    result = np.zeros(operators.height, np.bool_)
    for number in np.unique(of_thread).tolist():
        own = calls[of_thread == number][np.argsort(begin[of_thread == number], kind="stable")]
        rows = np.flatnonzero(thread == number)
        before = np.searchsorted(column(launches, "start_ns")[own], start[rows]) - 1
        last = own[np.maximum(before, 0)]
        same = np.searchsorted(steps, start[rows]) == np.searchsorted(steps, column(launches, "start_ns")[last])
        result[rows] = (before >= 0) & to_host[last] & same
    return result


def _hidden(context: Context, rows: Ints) -> Remedy:
    """Return the change that lets copies run beside other work, as far as a step has as much of that."""
    copying = float(column(context.trace.activities, "duration_ns")[rows].sum()) / context.steps
    # A step cannot be shorter than its copies: what is longer than the rest of the step stays.
    stays = min(max(2 - context.step_ns / max(copying, 1.0), 0.0), 1.0)
    return Remedy(
        "the copies run beside other work (likely: a tenth of them stays; low: all, as the data may come too late)",
        scaled(rows, (1.0, stays + _STAYS_OF_HIDDEN * (1 - stays), max(stays, _NOTHING))),
        rows,
    )


_TIMES_SLOWER: Final = 4  # than from pinned memory: recorded copies of pageable memory reached 10 to 14 GB/s
_ISSUED_NS: Final = 5_000  # a call that copies and does not wait takes 4 to 8 us
_STAYS_OF_HIDDEN: Final = 0.1
_NOTHING: Final = 1e-6  # of a copy's time: it is still made


_PINNING: Final = "x.pin_memory(), non_blocking=True"


_IN_SHORT: Final = {
    Rule.BLOCKING_COPY: "pin memory, copy asynchronously",
    Rule.STREAM_DEPENDENCY: "use two buffers for copies",
}


def _copy_better(context: Context, rule: Rule, directions: set[Direction | None], *, pinned: bool) -> str:
    """Return advice on how to hide copies behind work, or to make them faster."""
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
    """Return advice on how to make copies of pageable memory faster."""
    if not context.runs_pytorch:
        return f"{PINNED}; keep on the device what does not change"
    if not pageable_to_host:
        return f"{PIN}; keep on the device what does not change"
    return (
        "reduce on the device what is copied (argmax, sums), or copy into a pinned buffer: "
        "buffer = torch.empty(x.shape, dtype=x.dtype, pin_memory=True); buffer.copy_(x, non_blocking=True)"
    )
