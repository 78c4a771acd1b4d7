"""What becomes of a step if its optimizer is fused."""

import math
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.advice.context import Context
from opscope.analysis.advice.remedies import by_thread, reaches
from opscope.analysis.advice.remedy import Remedy
from opscope.analysis.replay.edit import Edit
from opscope.analysis.structure.arrays import column, end_of
from opscope.analysis.structure.nesting import Ints
from opscope.base.units import NS_PER_S, format_ns
from opscope.knowledge.calls import RecordedCall
from opscope.knowledge.dtypes import recorded_dtype
from opscope.knowledge.reach import FUSED_ADAM_NS, FUSED_HOST, FUSED_SGD_NS, Assumed, reach_of

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
