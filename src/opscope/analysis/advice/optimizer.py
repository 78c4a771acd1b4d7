"""Rules on the optimizer's step."""

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.advice.context import LEAST_SHARE, Context, Draft, Remedy, idle_claim
from opscope.analysis.advice.remedies import by_thread, reaches
from opscope.analysis.advice.rule import RuleDescription, general, measured, nanoseconds, percent, states
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import Intervals, column, end_of, nesting_of
from opscope.analysis.structure.autograd import after_closures
from opscope.analysis.structure.nesting import Bools, Ints
from opscope.base.text import lazy_pattern, or_unknown
from opscope.base.units import NS_PER_S, format_ns
from opscope.documents.findings import Rule, Source, Where
from opscope.documents.verdict import BoundKind
from opscope.knowledge.calls import RecordedCall
from opscope.knowledge.devices import FUSED_ADAM_NS, FUSED_HOST, FUSED_SGD_NS, Assumed, reach_of
from opscope.knowledge.dtypes import recorded_dtype

_RANGE: Final = lazy_pattern(r"^Optimizer\.step#(.+?)(\.step)?$")
_FUSED: Final = ("SGD", "Adam", "AdamW", "Adagrad")
_MANY: Final = 8  # kernels a step
# What fusing saves of the idle time in its ranges, at least and at most.
_OF_IDLE: Final = (0.5, 1.0)
# What fusing saves of the device time, at least and at most, where no shapes were recorded.
OF_WORK: Final = (0.3, 0.75)
# Adam reads parameter, gradient and two states, and writes all but the gradient; SGD with momentum has one state.
_PASSES_OF_ADAM: Final = 7
_PASSES_OF_OTHERS: Final = 5
_USUAL_BYTES: Final = 4  # of an element


class _Updated(Struct, frozen=True):
    """What an optimizer updates in a step.

    Attributes:
        tensors: how many.
        bytes: of all of them; 0 where no shapes were recorded.
    """

    tensors: float
    bytes: float


def fused(context: Context, name: str, ranges: pl.DataFrame, rows: Ints) -> Remedy:
    """Return the change to the fused optimizer: one pass over all that it reads and writes, in one launch.

    Args:
        context: what rules look at.
        name: the optimizer's class.
        ranges: the ranges of its steps.
        rows: the activities launched in them.
    """
    fixed, each = FUSED_ADAM_NS if name.startswith("Adam") else FUSED_SGD_NS
    start, end = column(ranges, "start_ns"), end_of(ranges)
    launch = context.links.activity_launch[rows]
    owner = np.searchsorted(np.sort(start), column(context.trace.launches, "start_ns")[launch], side="right")
    _, first = np.unique(owner, return_index=True)
    kept, gone = rows[first], np.delete(rows, first)
    updated = _updated(context, rows[owner == owner[0]], _element_bytes(context, rows))
    work = float(column(context.trace.activities, "duration_ns")[rows].sum()) / max(len(first), 1)
    host = fixed + each * updated.tensors
    calls = np.setdiff1d(launch, launch[first])
    threads = by_thread(column(ranges, "thread"), start, end)

    def apply(edit: Edit, assumed: Assumed) -> int:
        result = edit.remove_activities(gone)
        edit.take(kept, np.full(len(kept), round(min(_pass_ns(context, name, updated, work, assumed), work))))
        edit.remove_calls(calls)
        for thread, spans in threads:
            took = edit.host_time(thread, spans)
            inside = (spans.start >= edit.steps.chosen.begin_ns) & (spans.start < edit.steps.chosen.end_ns)
            takes = FUSED_HOST[assumed] * host * int(inside.sum())
            if took > takes:
                edit.remove_host(thread, spans, 1 - takes / took)
        return result

    return Remedy(
        f"one pass over parameters, gradients and states at {reaches('fused_optimizer')}, for which the host takes "
        f"{format_ns(host)} ({FUSED_HOST[Assumed.HIGH]:g} to {FUSED_HOST[Assumed.LOW]:g} times that)",
        apply,
    )


def _pass_ns(context: Context, name: str, updated: _Updated, work: float, assumed: Assumed) -> float:
    """Return how long the fused optimizer's device work takes, in nanoseconds.

    Args:
        context: what rules look at.
        name: the optimizer's class.
        updated: what it updates.
        work: how long its device work takes now.
        assumed: how favourable the assumptions are.
    """
    bandwidth = None if context.peaks is None else context.peaks.memory_bytes_per_s
    if not updated.bytes or not bandwidth:
        least, most = OF_WORK
        return work * (1 - (least, (least + most) / 2, most)[assumed])
    passes = _PASSES_OF_ADAM if name.startswith("Adam") else _PASSES_OF_OTHERS
    return reach_of("fused_optimizer", assumed).time_ns(passes * updated.bytes * NS_PER_S / bandwidth)


def _element_bytes(context: Context, rows: Ints) -> int:
    """Return how large the elements of lists of tensors are, whose types are not recorded, by the kernels' names."""
    names = context.trace.activities["name"].gather(rows).unique().cast(pl.String)
    # PyTorch's functors name the type of the tensors first, then that in which they compute.
    halves, floats = (bool(names.str.contains(f"Functor<{of}").any()) for of in ("c10::(BFloat16|Half)", "float"))
    return 2 if halves and not floats else _USUAL_BYTES


def _updated(context: Context, rows: Ints, element_bytes: int) -> _Updated:
    """Return what an optimizer updates, by the inputs of the operators of one of its steps.

    Each kind of operator passes over all tensors once or a few times; the rarest kind tells how many there are.

    Args:
        context: what rules look at.
        rows: the activities of the step.
        element_bytes: of elements whose type is not recorded.
    """
    owners = np.unique(context.links.activity_operator[rows])
    table = context.trace.operators.select(pl.col("name", "input_dims", "input_types").cast(pl.String))
    kinds: dict[str, list[float]] = {}
    for name, dims, types in table[owners[owners >= 0]].iter_rows():
        tensors, size = _first_input(dims, types, element_bytes)
        sums = kinds.setdefault(name, [0.0, 0.0])
        sums[0] += tensors
        sums[1] += size
    kinds = {name: sums for name, sums in kinds.items() if sums[1]}
    fewest = min((tensors for tensors, _ in kinds.values()), default=0.0)
    return _Updated(fewest, max((size / max(round(n / fewest), 1) for n, size in kinds.values()), default=0.0))


def _first_input(dims: str | None, types: str | None, element_bytes: int) -> tuple[int, int]:
    """Return how many tensors the first input of a call has, and their bytes; 0 where they are not known.

    Args:
        dims: the recorded shapes.
        types: the recorded types.
        element_bytes: of elements whose type is not recorded.
    """
    call = RecordedCall.read(dims, types, None)
    if call is None or not call.dims or not call.types:
        return 0, 0
    dtype = recorded_dtype(call.types[0])
    size = element_bytes if dtype is None else dtype.size_bytes
    shapes = call.lists[0] or ((call.dims[0],) if call.dims[0] else ())
    return len(shapes), size * sum(math.prod(shape) for shape in shapes)


def _ranges(context: Context) -> pl.DataFrame:
    """Return the ranges of optimizers' steps, without the closures in them."""
    annotations = context.trace.annotations
    ranges = annotations.filter(names_that(annotations, lambda name: _RANGE.search(name) is not None))
    return after_closures(context.trace, ranges)


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
