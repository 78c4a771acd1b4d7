"""Rules on the optimizer's step."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, idle_claim
from opscope.analysis.advice.evidence import general, measured, nanoseconds
from opscope.analysis.advice.fused_optimizer import OF_WORK, fused
from opscope.analysis.advice.rule import RuleDescription, percent, states
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import column, end_of, nesting_of
from opscope.analysis.structure.intervals import Intervals
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.base.patterns import lazy_pattern
from opscope.base.text import or_unknown
from opscope.documents.bound import BoundKind
from opscope.documents.findings import Rule, Source, Where

_RANGE: Final = lazy_pattern(r"^Optimizer\.step#(.+?)(\.step)?$")
_FUSED: Final = ("SGD", "Adam", "AdamW", "Adagrad")
_MANY: Final = 8  # kernels a step
# What fusing saves of the idle time in its ranges, at least and at most.
_OF_IDLE: Final = (0.5, 1.0)


def _ranges(context: Context) -> pl.DataFrame:
    """Return the ranges of optimizers' steps."""
    annotations = context.trace.annotations
    return annotations.filter(names_that(annotations, lambda name: _RANGE.search(name) is not None))


def _range_of_activities(context: Context, ranges: pl.DataFrame) -> Ints:
    """Return per activity the row of the range in ``ranges`` that it was launched in, or -1."""
    trace = context.trace
    result = np.full(trace.activities.height, -1, np.int64)
    launch = context.links.activity_launch
    launched = np.flatnonzero(launch >= 0)
    if ranges.height and len(launched):
        thread, start = (column(trace.launches, name)[launch[launched]] for name in ("thread", "start_ns"))
        result[launched] = nesting_of(ranges).innermost_at(thread, start)
    return result


def in_optimizer(context: Context) -> Bools:
    """Tell per activity whether it was launched within an optimizer's step."""
    result: Bools = _range_of_activities(context, _ranges(context)) >= 0
    return result


@states(
    RuleDescription(
        Rule.UNFUSED_OPTIMIZER,
        f"{_MANY} and more kernels a step within the `Optimizer.step` of one class of optimizers",
        f"{percent(OF_WORK[0])} to {percent(OF_WORK[1])} of its device time and {percent(_OF_IDLE[0])} to all of "
        "the idle time in it",
        "it is fused",
    ),
)
def unfused_optimizer(context: Context) -> Iterator[Draft]:
    """Find optimizers that update parameters by many kernels, each class by itself."""
    ranges = _ranges(context)
    names = ranges["name"].cast(pl.String)
    owner = _range_of_activities(context, ranges)[context.work]
    for name in names.unique(maintain_order=True):
        # -1, launched in no range, picks the appended False.
        own = np.append((names == name).to_numpy(), False)
        yield from _unfused(context, name, ranges.filter(names == name), context.work[own[owner]])


def _unfused(context: Context, range_name: str, ranges: pl.DataFrame, rows: Ints) -> Iterator[Draft]:
    """Find one optimizer that takes many kernels.

    Args:
        context: what rules look at.
        range_name: the name of the optimizer's ranges.
        ranges: the ranges of that name.
        rows: the activities that the optimizer launched.
    """
    trace = context.trace
    names = trace.activities["name"].gather(rows).cast(pl.String)
    if not len(rows) or names.str.contains("Fused(Adam|Adagrad|Sgd)MathFunctor").any():
        return
    kernels = len(rows) / context.steps
    work = float(column(trace.activities, "duration_ns")[rows].sum()) / context.steps
    spans = Intervals.union_of(column(ranges, "start_ns"), end_of(ranges))
    mask = context.waits.kinds[BoundKind.DISPATCH] | context.waits.kinds[BoundKind.HOST_WORK]
    idle = context.waits.idle.pieces.chosen(mask).within(spans).length / context.steps
    waiting = context.idle_for(BoundKind.DISPATCH) + context.idle_for(BoundKind.HOST_WORK)
    # Waiting without the profiler is divided as the recorded idle time is: by the part inside these ranges.
    share = idle * context.steps / max(int(context.waits.lengths[mask].sum()), 1)
    waiting = waiting.times(share, share)
    saving = (waiting.times(*_OF_IDLE) + context.of_device(OF_WORK[0] * work, OF_WORK[1] * work)).within(
        context.step_ns
    )
    if saving.high < LEAST_SHARE * context.step_ns or kernels < _MANY:
        return
    match = _RANGE.search(range_name)
    name = match[1] if match is not None else range_name
    lists = bool(names.str.contains("multi_tensor_apply").any())
    now = "a few kernels per operation" if lists else "several kernels per parameter"
    yield Draft(
        rule=Rule.UNFUSED_OPTIMIZER,
        title=f"{or_unknown(name)} takes {kernels:,.0f} kernels {context.words.each}: {now}",
        where=Where(annotation=range_name),
        saving=saving,
        derivation=f"{percent(OF_WORK[1])} (high) and {percent(OF_WORK[0])} (low) of its device time, as one pass "
        "over parameters, gradients and states "
        "remains; and all and half of the idle time in its ranges",
        evidence=(
            measured(
                nanoseconds(work),
                f" of device time {context.words.each} in {or_unknown(f'{name}.step')}",
                source=Source.ACTIVITIES,
            ),
            measured(nanoseconds(idle), f" of idle time {context.words.each} in its ranges", source=Source.IDLE),
            general("the fused optimizer reads and writes everything once, in a few kernels"),
        ),
        todo=f"{name}(..., fused=True)" if name in _FUSED else "torch.compile(optimizer.step)",
        action=f"torch.optim.{name}(..., fused=True)" if name in _FUSED else "torch.compile(optimizer.step)",
        wrong_if="parameters or gradients are not plain tensors of one device",
        claims=context.claims_of_activities(rows)
        | (idle_claim(BoundKind.DISPATCH) if waiting.high > LEAST_SHARE * context.step_ns else frozenset()),
        remedy=fused(context, name, ranges, rows),
    )
