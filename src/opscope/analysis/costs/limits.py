"""How long the work of a trace would take at the limits of its devices; definitions in docs/metrics.md, "Limits"."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from opscope.analysis.costs.occupancy import dimensions
from opscope.analysis.costs.sums import NO_OPERATOR, UNLINKED, LaunchShape, inputs_of_activities, launch_shape_rows
from opscope.analysis.structure.arrays import column
from opscope.analysis.structure.autograd import BackwardPass
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.modules import NO_MODULE, module_of_activities
from opscope.analysis.structure.nesting import Ints
from opscope.analysis.structure.step_work import step_of_activities, step_table
from opscope.base.parts import Stage, staged
from opscope.base.units import NS_PER_S, tensor_shapes
from opscope.documents.limits import LimitedBy, LimitRow, LimitTotal, Utilisation
from opscope.knowledge.calls import RecordedCall
from opscope.knowledge.categories import Category, Classifier, classifier_of
from opscope.knowledge.collectives import Direction, direction_of
from opscope.knowledge.costs import (
    ConvolutionSizes,
    Cost,
    cost_of,
    multi_tensor_cost,
    old_backward,
    old_convolution_cost,
)
from opscope.knowledge.devices import Peaks, datasheet_peaks, device_like, estimated_peaks, peaks_called
from opscope.knowledge.kernels.decode import decode_name
from opscope.knowledge.kernels.decoded import FP32_CORES, FP64_CORES, TENSOR_CORES, DecodedKernel, Operation
from opscope.knowledge.kernels.kinds import communicates
from opscope.knowledge.native_functions import NativeFunctions
from opscope.trace.model import DeviceProperties, Trace

# ---------------------------------------------------------------- sums


NO_STEP: Final = "(in no step)"
_KEY: Final = ("operator", "input_dims", "input_types", "device")


def totals_by_name(rows: Sequence[LimitRow], by: str) -> tuple[LimitTotal, ...]:
    """Add rows up; the most time lost first.

    Args:
        rows: the limits of single calls.
        by: ``operator``, ``category``, or ``shape`` for operator and input shapes.
    """
    groups: dict[tuple[str, str | None], list[LimitRow]] = {}
    for row in rows:
        name = row.category if by == "category" else row.operator or NO_OPERATOR
        # Grouped by what was recorded, not by the text that is printed: long lists of tensors may be shortened alike.
        groups.setdefault((name, row.input_dims if by == "shape" else None), []).append(row)
    return _sorted(_total(f"{name} {tensor_shapes(dims)}".rstrip(), result) for (name, dims), result in groups.items())


def _total(name: str, rows: Iterable[LimitRow]) -> LimitTotal:
    every = list(rows)
    known = [row for row in every if row.ideal_ns is not None]
    time, ideal = sum(row.device_ns for row in known), sum(least_ns(row) for row in known)
    return LimitTotal(
        name=name,
        device_ns=sum(row.device_ns for row in every),
        modelled_ns=time,
        ideal_ns=ideal,
        lost_ns=sum(row.lost_ns or 0.0 for row in known),
        share=min(ideal / time, 1.0) if time else None,
        flop=sum(row.calls * (row.least_flop or 0) for row in known),
    )


def least_ns(row: LimitRow) -> float:
    """Return the least time of all calls in nanoseconds; at most what they took, as a model or peak may be wrong."""
    return min(row.calls * (row.ideal_ns or 0.0), float(row.device_ns))


def _sorted(totals: Iterable[LimitTotal]) -> tuple[LimitTotal, ...]:
    return tuple(sorted(totals, key=lambda total: (-total.lost_ns, -total.device_ns, total.name)))


def totals_by_module(
    trace: Trace, links: Links, backward: BackwardPass, rows: Sequence[LimitRow]
) -> tuple[LimitTotal, ...] | None:
    """Add up by the innermost module that launched the work; None where no modules were recorded."""
    result = module_of_activities(trace, links, backward)
    if result is None:
        return None
    names, module = result
    labels = [*names.to_list(), NO_MODULE]
    # -1, in no module, picks the last label.
    return _sorted(_by_activity(trace, links, rows, [labels[at] for at in module.tolist()]))


def totals_by_step(trace: Trace, links: Links, rows: Sequence[LimitRow]) -> tuple[LimitTotal, ...]:
    """Add up by the step that launched the work, in order."""
    table = step_table(trace)
    labels = [f"step {number}" for number in table["step"].to_list()] + [NO_STEP]
    step = step_of_activities(trace, links, table)
    # -1, in no step, picks the last label.
    totals = {total.name: total for total in _by_activity(trace, links, rows, [labels[at] for at in step.tolist()])}
    return tuple(totals[label] for label in dict.fromkeys(labels) if label in totals)


def _by_activity(trace: Trace, links: Links, rows: Sequence[LimitRow], label: Sequence[str]) -> Iterator[LimitTotal]:
    """Add limits up by label: each activity gets the part of its row's limit that its duration is of the row's."""
    share, flop = _per_nanosecond(trace, links, rows)
    duration = column(trace.activities, "duration_ns")
    known = ~np.isnan(share)
    table = pl.DataFrame(
        {
            "label": label,
            "device_ns": duration,
            "modelled_ns": np.where(known, duration, 0),
            "ideal_ns": np.where(known, duration * np.minimum(share, 1.0), 0.0),
            "flop": np.where(known, duration * flop, 0.0),
        }
    )
    for name, device, modelled, ideal, operations in table.group_by("label", maintain_order=True).sum().iter_rows():
        yield LimitTotal(
            name=name,
            device_ns=device,
            modelled_ns=modelled,
            ideal_ns=ideal,
            lost_ns=modelled - ideal,
            share=ideal / modelled if modelled else None,
            flop=round(operations),
        )


def _per_nanosecond(trace: Trace, links: Links, rows: Sequence[LimitRow]) -> tuple[Ints, Ints]:
    """Return per activity its row's share of the limit and operations per nanosecond; NaN without a model."""
    known = [row for row in rows if row.ideal_ns is not None and row.device_ns]
    keys = pl.DataFrame(
        {
            **{name: [getattr(row, name) for row in known] for name in _KEY},
            "time": [row.device_ns for row in known],
            "ideal": [least_ns(row) for row in known],
            "flop": [float(row.calls * (row.least_flop or 0)) for row in known],
        },
        schema={**dict.fromkeys(_KEY[:3], pl.String), "device": pl.Int32, "time": pl.Int64, "ideal": pl.Float64,
                "flop": pl.Float64},
    )  # fmt: skip
    keys = keys.group_by(_KEY).sum().with_columns(pl.col("ideal", "flop") / pl.col("time"))
    inputs = inputs_of_activities(trace, links).select(pl.col(_KEY[:3]).cast(pl.String))
    activities = inputs.with_columns(device=trace.activities["device"].cast(pl.Int32))
    joined = activities.join(keys, on=_KEY, how="left", nulls_equal=True, maintain_order="left")
    return joined["ideal"].fill_null(np.nan).to_numpy(), joined["flop"].fill_null(np.nan).to_numpy()


def utilisation(
    device: int,
    rows: Sequence[LimitRow],
    needed: Sequence[LimitRow],
    of_ns: float,
    steps: int,
    *,
    unprofiled: bool,
) -> Utilisation:
    """Return how well steps use a device.

    Args:
        device: its number.
        rows: the limits of the steps' work on all devices.
        needed: the same without what the backward pass computes again.
        of_ns: how long a step takes, in nanoseconds.
        steps: how many steps the rows cover.
        unprofiled: whether ``of_ns`` was measured without a profiler.
    """
    own = [row for row in rows if row.device == device and row.ideal_ns is not None]
    moved = sum(row.calls * (row.least_bytes or 0) for row in own)
    seconds = of_ns * steps / NS_PER_S
    # What is computed again keeps the device busy (HFU), but is not needed (MFU).
    hfu = _products(own) / of_ns / steps if of_ns else 0.0
    return Utilisation(
        device=device,
        of_ns=of_ns,
        unprofiled=unprofiled,
        hfu=hfu or None,
        mfu=None if not hfu else _products(row for row in needed if row.device == device) / of_ns / steps,
        achieved_bytes_per_s=moved / seconds if seconds and moved else None,
    )


def _products(rows: Iterable[LimitRow]) -> float:
    """Return how long all products of the rows take at the peaks of their units, in nanoseconds."""
    return sum(row.calls * (row.compute_ns or 0.0) for row in rows)


# ---------------------------------------------------------------- limits of calls


# The shortest kernels in the recorded traces take 0.7 to 1.1 us, whatever they do.
FLOOR_NS: Final = 1_200.0
_LOOKED_AT: Final = 2_000  # rows of inputs, kernels and geometry: traces of real programs have hundreds
MODELLED_SHARE: Final = 0.7  # of the time
MOSTLY_MOVING: Final = 0.3  # of the time: from here on, whether data must move matters more than how fast they do
# A call may exceed its limit by this factor: peaks and clocks are not exact.
_TOLERATED: Final = 1.05
NO_MODEL: Final = "no model knows it with these inputs"
NO_INPUTS: Final = "its inputs were not recorded"
BETWEEN_DEVICES: Final = "data move between devices"
PRODUCTS: Final = (Operation.GEMM, Operation.GEMV, Operation.FPROP, Operation.DGRAD, Operation.WGRAD)
_INPUTS: Final = ("operator", "input_dims", "input_types", "input_strides", "concrete_inputs", "kernel_file", "device")
# From short names of data types to the precisions of `opscope.knowledge.devices`.
_BY_SHORT: Final[Mapping[str, str]] = {
    **{"f32": "fp32", "tf32": "tf32", "f16": "fp16", "bf16": "bf16", "f64": "fp64", "i8": "int8", "u8": "int8"},
    **{"f8e4m3": "fp8", "f8e5m2": "fp8", "f8": "fp8", "e4m3": "fp8", "e5m2": "fp8", "fp8": "fp8"},
}
# Peaks that may apply to operands of a type, or to a precision whose kernel's name leaves the unit open.
_UNITS: Final[Mapping[str, tuple[str, ...]]] = {
    "float32": ("fp32", "tf32"),
    "float64": ("fp64", "fp64_tensor"),
    "fp16": ("fp16", "fp16_acc16"),
}
CLEARLY_FASTER: Final = 1.5  # a choice: times the peak of what runs; with less, a lower precision is not worth advising
# For each precision the lower ones that users may choose, in order of preference.
_LOWER: Final[Mapping[str, tuple[str, ...]]] = {
    "fp64": ("fp32", "tf32"),
    "fp64_tensor": ("tf32",),
    "fp32": ("tf32", "bf16", "fp16"),
    "tf32": ("bf16", "fp16"),
}


class _Work(Struct, frozen=True):
    """The calls of an operator with the same inputs: their kernels, the most expensive first."""

    kernels: tuple[LaunchShape, ...]

    @property
    def first(self) -> LaunchShape:
        return self.kernels[0]

    @property
    def calls(self) -> int:
        return self.first.operator_calls or sum(kernel.calls for kernel in self.kernels)

    @property
    def device_ns(self) -> int:
        return sum(kernel.total_ns for kernel in self.kernels)


def peaks_of(devices: Sequence[DeviceProperties]) -> dict[int | None, Peaks]:
    """Return the peaks of a trace's devices by their numbers; devices without known peaks are left out.

    Peaks that this user measured with ``opscope gpus --measure`` on a device of this name come before its datasheet. A
    name that no table has gets the datasheet of a device that is as large, else an estimate from one of the same
    compute capability.
    """
    results = {item.index: _peaks_of(item) for item in devices}
    return {index: peaks for index, peaks in results.items() if peaks is not None}


def _peaks_of(device: DeviceProperties) -> Peaks | None:
    if (known := peaks_called(device.name, device.multiprocessors)) is not None:
        return known
    like = device_like(device.vendor, device.compute_capability, device.multiprocessors, device.memory_bytes)
    if like is not None:
        return replace(datasheet_peaks(like), origin=f"datasheet of {like.name}, which is as large")
    return estimated_peaks(device.name, device.compute_capability, device.multiprocessors)


# Returns the cost of a call that no rule knows, by asking PyTorch; None where that does not know it either.
Rebuild = Callable[[LaunchShape, Category], Cost | None]


@staged(Stage.LIMITS)
def limit_rows(
    launch_shapes: pl.DataFrame,
    functions: NativeFunctions,
    peaks: Mapping[int | None, Peaks],
    rebuild: Rebuild | None = None,
    convolutions: frozenset[ConvolutionSizes] = frozenset(),
) -> tuple[LimitRow, ...]:
    """Return all device work of a trace with its limits: the most time lost first, then what has no model.

    Args:
        launch_shapes: the trace's `launch_shapes`; the most expensive first.
        functions: the operators of the PyTorch that ran, or of a release.
        peaks: by device number; work on a device without peaks has no limits.
        rebuild: gives the costs of calls that no rule knows; None to leave them without a model.
        convolutions: those of the trace, by `old_convolutions`.
    """
    classifier = classifier_of(functions)
    works = _works(launch_shapes.head(_LOOKED_AT))
    costs = _Costs(functions, classifier, rebuild, convolutions)
    rows = [_row(work, costs, peaks.get(work.first.device)) for work in works]
    rows += _not_looked_at(launch_shapes[_LOOKED_AT:], classifier)
    return tuple(sorted(rows, key=lambda row: (row.lost_ns is None, -(row.lost_ns or 0), -row.device_ns)))


def old_convolutions(operators: pl.DataFrame) -> frozenset[ConvolutionSizes]:
    """Return the convolutions of a trace by their backward passes, where PyTorch before 1.11 recorded them.

    Args:
        operators: the trace's.
    """
    backward = operators.filter(pl.col("name").cast(pl.String).str.ends_with("_convolution_backward"))
    calls = backward.select(pl.col("name", "input_dims", "input_types").cast(pl.String)).unique().drop_nulls()
    results = set()
    for name, dims, types in calls.iter_rows():
        call = RecordedCall.read(dims, types, None)
        if call is not None and (sizes := old_backward(name, call)) is not None:
            results.add(sizes)
    return frozenset(results)


def _not_looked_at(launch_shapes: pl.DataFrame, classifier: Classifier) -> Iterator[LimitRow]:
    """Yield the rest of the work per operator and device; each of its shapes takes next to no time."""
    sums = launch_shapes.group_by("operator", "device", maintain_order=True).agg(
        pl.col("name").first(), pl.col("calls", "total_ns").sum()
    )
    for operator, device, kernel, calls, time in sums.iter_rows():
        yield LimitRow(
            operator=operator,
            category=UNLINKED if operator is None else str(classifier.classify(operator).category),
            device=device,
            kernel=kernel,
            calls=calls,
            device_ns=time,
            call_ns=time / calls,
            reason=f"not looked at: beyond the {_LOOKED_AT:,} most expensive inputs and kernels",
        )


def _works(launch_shapes: pl.DataFrame) -> Iterator[_Work]:
    groups: dict[tuple[object, ...], list[LaunchShape]] = {}
    for row in launch_shape_rows(launch_shapes):
        key = tuple(getattr(row, name) for name in _INPUTS)
        # Launches of no operator have nothing in common but the kernel's name.
        groups.setdefault(key if row.operator is not None else (None, row.name, row.device), []).append(row)
    for kernels in groups.values():
        yield _Work(tuple(kernels))


def _row(work: _Work, costs: "_Costs", peaks: Peaks | None) -> LimitRow:
    first, call_ns = work.first, work.device_ns / work.calls
    category = UNLINKED if first.operator is None else str(costs.classifier.classify(first.operator).category)
    cost, reason = costs.of(work)
    if cost is not None and peaks is not None:
        cost = _as_run(cost, peaks, call_ns)
    precision = _precision(work, cost)
    ideal = None if cost is None or peaks is None else _ideal(cost, precision, peaks, call_ns)
    if cost is not None and ideal is None:
        reason = "the peaks of this device are not known" if peaks is None else f"no peak is known for {precision}"
    lower, lower_ideal = (None, None) if cost is None or peaks is None else _at_lower(cost, precision, peaks, call_ns)
    return LimitRow(
        operator=first.operator,
        category=category,
        device=first.device,
        input_dims=first.input_dims,
        input_types=first.input_types,
        input_strides=first.input_strides,
        kernel=first.name,
        thread_blocks=None if (grid := dimensions(first.grid)) is None else math.prod(grid),
        calls=work.calls,
        device_ns=work.device_ns,
        call_ns=call_ns,
        flop=None if cost is None else cost.flop,
        least_flop=None if cost is None else cost.least_flop,
        least_bytes=None if cost is None else cost.least_bytes,
        achieved_flop_per_s=None if cost is None else _rate(cost.flop, call_ns),
        achieved_bytes_per_s=None if cost is None else _rate(cost.least_bytes, call_ns),
        product=None if cost is None else cost.product,
        precision=precision,
        compute_ns=None if ideal is None else ideal.compute_ns,
        ideal_ns=None if ideal is None else ideal.time_ns,
        limited_by=None if ideal is None else str(ideal.by),
        share=None if ideal is None or not call_ns else ideal.time_ns / call_ns,
        lost_ns=None if ideal is None else max(work.device_ns - work.calls * ideal.time_ns, 0.0),
        lower_precision=lower,
        lower_ideal_ns=lower_ideal,
        reason=reason,
    )


def _rate(amount: int | None, ns: float) -> float | None:
    return None if amount is None or not ns else amount / ns * NS_PER_S


class _Costs(Struct, frozen=True):
    """Finds the cost of work: by rules, and where no rule knows it, by asking PyTorch."""

    functions: NativeFunctions
    classifier: Classifier
    rebuild: Rebuild | None
    convolutions: frozenset[ConvolutionSizes]

    def of(self, work: _Work) -> tuple[Cost | None, str | None]:
        """Return the cost of a call, or None and the reason why there is none."""
        first = work.first
        reason = _beyond_models(work)
        if first.operator is None or reason is not None:
            return None, reason
        category = self.classifier.classify(first.operator).category
        cost = _of_lists(work)
        if cost is None and (call := recorded_call(first, self.functions)) is not None:
            cost = cost_of(first.operator, category, call)
            cost = cost or old_convolution_cost(first.operator, call, self.convolutions)
        if (cost is None or cost.least_bytes is None) and first.input_dims is not None and self.rebuild is not None:
            cost = self.rebuild(first, category)
        if cost is not None and cost.least_bytes is not None:
            return cost, None
        return None, NO_INPUTS if first.input_dims is None else NO_MODEL


def _beyond_models(work: _Work) -> str | None:
    """Return why no model can exist for some work; None where one can."""
    if work.first.operator is None:
        return "no operator was recorded"
    copied = {direction_of(kernel.name) for kernel in work.kernels if kernel.kind == "memcpy"}
    if copied & {Direction.TO_DEVICE, Direction.TO_HOST}:
        return "data move to or from the host"
    if Direction.BETWEEN_DEVICES in copied or any(
        kernel.kind == "kernel" and communicates(kernel.name) for kernel in work.kernels
    ):
        return BETWEEN_DEVICES
    return None


def recorded_call(row: LaunchShape, functions: NativeFunctions) -> RecordedCall | None:
    """Return the call of an operator as its row records it, with the names of its arguments."""
    call = RecordedCall.read(row.input_dims, row.input_types, row.concrete_inputs, row.input_strides)
    if call is None or row.operator is None:
        return None
    return call.named(functions.argument_names(row.operator, call.types))


def _of_lists(work: _Work) -> Cost | None:
    """Return what a call on lists of tensors moves at least, by the grids of its kernels; None for other kernels."""
    total = 0
    for kernel in work.kernels:
        grid = dimensions(kernel.grid)
        cost = None if grid is None else multi_tensor_cost(kernel.name, grid[0])
        if cost is None or cost.least_bytes is None:
            return None
        total += kernel.calls * cost.least_bytes
    return Cost(total // work.calls)


def _precision(work: _Work, cost: Cost | None) -> str | None:
    """Return in which precision products ran: by the kernel's name, else by their operands; None for other work."""
    if cost is None:  # the sizes are unknown, but the kernel's name still says how it multiplies
        kernel = decode_name(work.first.name)
        return precision_of(kernel) if kernel.operation in PRODUCTS else None
    if not cost.flop:
        return None
    named = next(
        (result for kernel in work.kernels if (result := precision_of(decode_name(kernel.name))) is not None), None
    )
    if named is not None or cost.dtype is None:
        return named
    # If the name does not say, the operands' type does, except for types that several units take.
    return None if cost.dtype.short in ("f32", "f64") else _BY_SHORT.get(cost.dtype.short)


def precision_of(kernel: DecodedKernel) -> str | None:
    """Return in which precision a kernel multiplies, as `Device` of `opscope.knowledge.devices` names it, or None."""
    if kernel.unit == FP32_CORES:
        return "fp32"
    if kernel.unit == FP64_CORES:
        return "fp64"
    if kernel.unit != TENSOR_CORES:
        return None
    dtype = _BY_SHORT.get(kernel.compute_dtype or kernel.input_dtype or "")
    # Tensor Cores take operands of 32 bits as TF32, and have a peak of their own for 64 bits.
    return {"fp32": "tf32", "fp64": "fp64_tensor"}.get(dtype or "", dtype)


def _as_run(cost: Cost, peaks: Peaks, call_ns: float) -> Cost:
    """Return the cost; with inputs that look alike counted once, if memory could not have moved them all in time."""
    if cost.shared_bytes is None or cost.least_bytes is None or not peaks.memory_bytes_per_s:
        return cost
    too_fast = NS_PER_S * cost.least_bytes / peaks.memory_bytes_per_s > call_ns
    return replace(cost, least_bytes=cost.shared_bytes) if too_fast else cost


class _Ideal(Struct, frozen=True):
    time_ns: float
    by: LimitedBy
    compute_ns: float


def _ideal(cost: Cost, precision: str | None, peaks: Peaks, call_ns: float) -> _Ideal | None:
    """Return the least time of a call; None where a peak or the cost is not known."""
    if cost.least_bytes is None or not peaks.memory_bytes_per_s or cost.least_flop is None:
        return None
    memory = NS_PER_S * cost.least_bytes / peaks.memory_bytes_per_s
    if cost.least_bytes <= (peaks.l2_bytes or 0):
        memory = min(memory, call_ns)  # the cache may hold it all, and is faster
    compute = 0.0
    if cost.least_flop:
        # If the unit is not known, the fastest one that may be used is the limit.
        units = _UNITS.get(precision or (cost.dtype.torch if cost.dtype else ""), (precision or "",))
        rate = max((peaks.rates.get(unit, 0.0) for unit in units), default=0.0)
        if not rate:
            return None
        compute = NS_PER_S * cost.least_flop / rate
    longest = max(compute, memory)
    if longest < FLOOR_NS:
        return _Ideal(max(longest, min(FLOOR_NS, call_ns)), LimitedBy.FLOOR, compute)
    return _Ideal(longest, LimitedBy.COMPUTE if compute >= memory else LimitedBy.MEMORY, compute)


def _at_lower(cost: Cost, precision: str | None, peaks: Peaks, call_ns: float) -> tuple[str | None, float | None]:
    """Return the next lower precision at which the device is clearly faster, and the least time at it; or None."""
    own = peaks.rates.get(precision or "")
    for lower in _LOWER.get(precision or "", ()) if own else ():
        if peaks.rates.get(lower, 0.0) > CLEARLY_FASTER * (own or 0.0):
            ideal = _ideal(cost, lower, peaks, call_ns)
            return lower, None if ideal is None else ideal.time_ns
    return None, None


def mostly_modelled(rows: Sequence[LimitRow]) -> bool:
    """Tell whether at least `MODELLED_SHARE` of the device time of some work has a model."""
    whole = sum(row.device_ns for row in rows)
    return whole > 0 and sum(row.device_ns for row in rows if row.ideal_ns is not None) >= MODELLED_SHARE * whole


def moving_share(rows: Sequence[LimitRow]) -> float:
    """Return the share of some work's device time that only copies or fills data; 0 of no work."""
    whole = sum(row.device_ns for row in rows)
    moving = sum(
        row.device_ns for row in rows if row.category == Category.MEMORY or direction_of(row.kernel) is not None
    )
    return moving / whole if whole else 0.0


def over_limit(rows: Sequence[LimitRow]) -> tuple[str, ...]:
    """Return the operators, or kernels of no operator, whose calls were faster than their limit."""
    return tuple(dict.fromkeys(row.operator or row.kernel for row in rows if is_over_limit(row)))


def is_over_limit(row: LimitRow) -> bool:
    """Tell whether calls were faster than their limit, so that a model or a peak is wrong."""
    return row.share is not None and row.share > _TOLERATED
