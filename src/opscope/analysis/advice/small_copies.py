"""The rule on values that are copied to the device one by one, each with a wait, as by torch.tensor in a loop."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, Range, Remedy, idle_claim
from opscope.analysis.advice.remedies import by_thread
from opscope.analysis.advice.rule import RuleDescription, derived, measured, nanoseconds, percent, states
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import column, end_of, nesting_of
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.base.text import lazy_pattern, or_unknown
from opscope.base.units import format_bytes
from opscope.documents.findings import Rule, Source
from opscope.documents.verdict import BoundKind
from opscope.knowledge.devices import Assumed

# The operators inside a copy of a tensor to a device, and those that torch.tensor runs around it.
_COPYING: Final = frozenset({"aten::to", "aten::_to_copy", "aten::copy_", "aten::lift_fresh", "aten::clone"})
_MAKING: Final = lazy_pattern(r"built-in (method|function) (tensor|as_tensor)\b")
_SMALL: Final = 65_536  # bytes: up to this size the driver takes the data along, as quickly as a single byte
_FEWEST: Final = 4  # a step
_OTHER_OWN: Final = (0.7, 1.15)  # of the estimated time: what a change saves at least and at most


def small_copies_of(context: Context) -> Ints:
    """Return the activities that copy a few values from pageable memory to the device; none where a step has few."""
    activities = context.trace.activities
    moved = activities["bytes"].fill_null(_SMALL + 1).to_numpy()
    rows = context.work[(context.uploads_pageable & (moved <= _SMALL))[context.work]]
    rows = rows[context.links.activity_launch[rows] >= 0]
    none: Ints = np.zeros(0, np.int64)
    return rows if len(rows) >= _FEWEST * context.steps else none


@states(
    RuleDescription(
        Rule.BLOCKING_COPY,
        f"{_FEWEST} and more copies a step of at most {_SMALL // 1024} KiB, each with a wait",
        "the host's time in these operators: their API calls as recorded, the rest as an unprofiled step is to the "
        "recorded "
        f"one; {percent(_OTHER_OWN[0])} to {percent(_OTHER_OWN[1])} of it",
        "the device is busy meanwhile",
        of_host=True,
    ),
)
def small_copies(context: Context) -> Iterator[Draft]:
    """Find copies of a few values: the bus is not what they cost, but the host's making a tensor, copying, waiting."""
    rows = small_copies_of(context)
    launches = context.links.activity_launch[rows]
    owner = _outermost(context, context.links.launch_operator[launches])
    if not len(rows) or not (owner >= 0).any():
        return
    operators, api = np.unique(owner[owner >= 0]), context.trace.launches
    whole = float(column(context.trace.operators, "duration_ns")[operators].sum()) / context.steps
    inside = np.isin(_outermost(context, context.links.launch_operator), operators)
    calls = float(column(api, "duration_ns")[inside].sum()) / context.steps
    saving = _saving(context, whole, calls)
    if saving.high < LEAST_SHARE * context.step_ns:
        return
    each = len(rows) / context.steps
    size = int(np.median(context.trace.activities["bytes"].gather(rows).fill_null(0).to_numpy()))
    where = context.where_of_call(int(launches[0]))
    yield Draft(
        rule=Rule.BLOCKING_COPY,
        title=f"{each:,.0f} times {context.words.each} a few values ({format_bytes(size)}) are copied to the "
        "device, and waited for",
        where=where,
        saving=saving,
        derivation="the host's time in these operators: calls of the API as recorded, the rest as an unprofiled step "
        f"is to the recorded one ({percent(_OTHER_OWN[1])}: high, {percent(_OTHER_OWN[0])}: low), as far as the "
        "device is not busy meanwhile",
        evidence=(
            measured(
                nanoseconds(whole),
                f" of a recorded step lie in {or_unknown(where.operator, 'these operators')}, ",
                nanoseconds(calls),
                " of it in calls that copy and wait",
                source=Source.HOST,
            ),
            derived(
                "the device works ",
                nanoseconds(context.busy_ns),
                f" in {context.words.one} of ",
                nanoseconds(context.step_ns),
                source=Source.STEP,
            ),
        ),
        todo="make constants once, on the device",
        action="make constants on the device once, before the loop, or there (torch.full((), v, device=...)); pass "
        "numbers to operators as Python numbers; send many values as one tensor",
        wrong_if="the values are new in every step and come from the host",
        claims=idle_claim(BoundKind.DISPATCH) | idle_claim(BoundKind.BLOCKING),
        remedy=_without_copying(context, rows, np.flatnonzero(inside), operators),
    )


def _without_copying(context: Context, rows: Ints, calls: Ints, operators: Ints) -> Remedy:
    """Return the change that leaves out copies, the calls of the operators that make them, and these themselves.

    Args:
        context: what rules look at.
        rows: the copies.
        calls: the calls in the operators around them.
        operators: these operators.
    """
    of_trace, frames = context.trace.operators, context.trace.frames
    thread, start, end = (column(of_trace, "thread"), column(of_trace, "start_ns"), end_of(of_trace))
    thread, start, end = thread[operators], start[operators], end[operators]
    # torch.tensor reads a list before it calls any operator: where stacks were recorded, its frame has all of that.
    making = frames.filter(names_that(frames, lambda name: _MAKING.search(name) is not None))
    around = nesting_of(making).innermost_at(thread, start) if making.height else np.full(len(start), -1)
    whole = around >= 0
    start = np.where(whole, np.append(column(making, "start_ns"), 0)[around], start)
    end = np.where(whole, np.append(end_of(making), 0)[around], end)
    stretches = by_thread(thread, start, end)

    def apply(edit: Edit, assumed: Assumed) -> int:
        result = edit.remove_activities(rows)
        edit.remove_calls(calls)
        for number, spans in stretches:
            edit.remove_host(number, spans, _OTHER_OWN[0] if assumed is Assumed.LOW else 1.0)
        return result

    return Remedy(
        f"nothing is copied; {1 - _OTHER_OWN[0]:.0%} of the host's time in these operators stays for low", apply
    )


def _saving(context: Context, whole: float, calls: float) -> Range:
    """Return how much shorter a step gets without the host's time in some operators.

    Args:
        context: what rules look at.
        whole: that time, in nanoseconds per recorded step.
        calls: the part of it in calls of the API.
    """
    recorded = max(context.device.window.duration_ns / context.steps, 1.0)
    own = max(whole - calls, 0.0)
    if context.inside_ns is None:
        fast, slow = (calls + own) / context.cost.most, calls + own / context.cost.least
        result = Range(fast, slow)
    else:
        # Calls take as long without the profiler. What is left of an unprofiled step tells how much faster the rest is.
        factor = max(context.inside_ns - calls, 0.0) / max(recorded - calls, 1.0)
        likely = calls + own * min(factor, 1.0)
        result = Range(_OTHER_OWN[0] * likely, _OTHER_OWN[1] * likely, likely)
    return result.within(max(context.step_ns - context.busy_ns, 0.0))


def _outermost(context: Context, operator: Ints) -> Ints:
    """Return per operator the outermost one around it that is reached through copying operators only.

    Args:
        context: what rules look at.
        operator: rows of the operators; -1 for none.

    Returns:
        Rows of the operators; -1 for an operator that is none of `_COPYING`.
    """
    parent = context.links.operators.parent
    copies: Bools = np.append(names_that(context.trace.operators, lambda name: name in _COPYING), False)
    result = np.where(copies[operator], operator, -1)
    while True:
        above = np.where(result >= 0, np.append(parent, -1)[result], -1)
        climbs = (above >= 0) & copies[above]
        if not climbs.any():
            return result
        result = np.where(climbs, above, result)
