"""Findings on a device that is busy all the time: which work is far from its limit, and what the work is."""

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, Range, Remedy, claims_of
from opscope.analysis.advice.remedies import taking
from opscope.analysis.advice.rule import RuleDescription, count_of, derived, measured, nanoseconds, percent, span
from opscope.analysis.verdict.bounds import BUSY_SHARE
from opscope.base.text import or_unknown, shell_path
from opscope.base.units import format_ns, format_share
from opscope.documents.findings import Fact, Rule, Source, Where
from opscope.documents.limits import LimitRow
from opscope.knowledge.devices import Assumed
from opscope.knowledge.kernels.decode import told_kernel
from opscope.knowledge.kernels.kinds import communicates

_FAR: Final = 0.5  # of the limit
_REACHED: Final = 0.8  # of the limit: what kernels that pass over memory once reach (device copies on an H200 do)
_LEAST_CALL_NS: Final = 10_000.0  # shorter kernels are a matter of launching
_NAMED: Final = 3
_LIKELY: Final = 0.1  # of what the limit allows: why the work is far from it is unknown


FAR_FROM_LIMIT: Final = RuleDescription(
    Rule.FAR_FROM_LIMIT,
    f"of a device that is busy {percent(BUSY_SHARE)} of the step, work other than products of "
    f"{span(_LEAST_CALL_NS)} a call and more below {percent(_FAR)} of its limit, of which no other rule speaks: "
    "the "
    f"{_NAMED} that lose most",
    f"0 to what {percent(_REACHED)} of the limit allows",
    "the device waits",
)
DEAREST_WORK: Final = RuleDescription(
    Rule.DEAREST_WORK,
    f"such a device, where no other rule has anything to say: the {_NAMED} kernels that take most",
    "0",
)


def far_from_limit(context: Context, others: Sequence[Draft]) -> Iterator[Draft]:
    """Find work that takes far longer than the device allows, and that no other rule speaks of.

    Args:
        context: what rules look at.
        others: what the other rules found.
    """
    claimed = frozenset[str]().union(*(draft.claims for draft in others))
    rows = [row for row in context.rows if _is_far(row) and not claims_of([row]) & claimed]
    rows.sort(key=lambda row: -(row.lost_ns or 0.0))
    for row in rows[:_NAMED]:
        lost = max(row.device_ns - row.calls * (row.ideal_ns or 0.0) / _REACHED, 0.0) / context.steps
        high = context.of_device(0.0, lost).high
        if high < LEAST_SHARE * context.step_ns:
            continue
        share, time = format_share(row.share or 0.0, 1), row.device_ns / context.steps
        yield Draft(
            rule=Rule.FAR_FROM_LIMIT,
            title=f"{or_unknown(row.operator, 'a kernel')} runs at {share} of its limit "
            f"({format_ns(time)} {context.words.per})",
            where=context.where_of_row(row),
            saving=Range(0.0, high, _LIKELY * high),
            derivation=f"its time less what it takes at {percent(_REACHED)} of the limit (high); why it is slower is "
            "not "
            "known (low)",
            evidence=(
                measured(
                    count_of(row.calls / context.steps, 1),
                    f" calls {context.words.each} of {or_unknown(row.input_dims, 'unknown inputs')}, ",
                    nanoseconds(row.call_ns),
                    f" each, as {told_kernel(row.kernel)}",
                    source=Source.ACTIVITIES,
                ),
                derived(f"{row.limited_by or 'the device'} allows ", nanoseconds(row.ideal_ns), source=Source.LIMITS),
                *_what_is_known(context, row),
            ),
            todo="see its source: opscope explain",
            action=f"opscope explain {shell_path(row.operator or row.kernel)}  "
            "# its source; opscope explain --in TRACE: what slows it",
            wrong_if="it must touch more than its inputs and outputs once, such as indices at random places",
            claims=claims_of([row]),
            remedy=Remedy(
                f"it takes what {percent(_REACHED)} of the limit allows (high), a tenth of the way there (likely), or "
                "as long as now (low): why it is slower is not known",
                taking(context, [row], _nearer),
                context.activities_of([row]),
            ),
        )


def _nearer(row: LimitRow, assumed: Assumed) -> float:
    """Return how long a call takes that comes nearer to its limit, in nanoseconds."""
    reached = min((row.ideal_ns or row.call_ns) / _REACHED, row.call_ns)
    return row.call_ns - {Assumed.LOW: 0.0, Assumed.LIKELY: _LIKELY, Assumed.HIGH: 1.0}[assumed] * (
        row.call_ns - reached
    )


def _is_far(row: LimitRow) -> bool:
    if row.product is not None or row.share is None or row.lost_ns is None or communicates(row.kernel):
        return False
    return row.share < _FAR and row.call_ns >= _LEAST_CALL_NS


def _what_is_known(context: Context, row: LimitRow) -> Iterator[Fact]:
    units = context.properties.multiprocessors if context.properties else None
    if units and row.thread_blocks and row.thread_blocks < units:
        yield measured(
            f"{row.thread_blocks} thread blocks leave {units - row.thread_blocks} of {units} units idle",
            source=Source.ACTIVITIES,
        )
    if row.input_strides:
        yield measured(f"strides of its inputs: {row.input_strides}", source=Source.HOST)


def dearest(context: Context) -> Iterator[Draft]:
    """Find the kernels that take most of a busy device's time, where no rule has more to say."""
    if context.busy_ns < BUSY_SHARE * context.step_ns or not len(context.work):
        return
    names = context.trace.activities.select("name", "duration_ns")[context.work]
    table = names.group_by("name").agg(pl.len(), pl.col("duration_ns").sum()).sort("duration_ns", descending=True)
    whole = max(int(table["duration_ns"].sum()), 1)
    shown = [
        f"{told_kernel(str(name))} ({count / context.steps:,.0f} {context.words.each}, {format_share(time, whole)})"
        for name, count, time in table.head(_NAMED).iter_rows()
    ]
    yield Draft(
        rule=Rule.DEAREST_WORK,
        title=f"The device works on {', '.join(shown)}",
        where=Where(kernel=str(table["name"][0])),
        saving=Range(0.0, 0.0),
        derivation="no rule finds anything in it",
        evidence=(measured("shares of the time of all device work", source=Source.ACTIVITIES),),
        todo="see what is slow: opscope limits",
        action="opscope limits TRACE  # how far each is from its limit; opscope explain KERNEL names its source",
        wrong_if="a cause that no rule knows",
    )
