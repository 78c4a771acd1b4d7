"""Tables per operator, per kernel and per inputs, and memory by the operators that allocated it.

Every duration belongs to exactly one operator, or is listed as unlinked.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.api_masks import names_that
from opscope.analysis.structure.arrays import Intervals, column, costliest_first
from opscope.analysis.structure.links import Links, device_time_of_operators, operator_self_cpu
from opscope.analysis.structure.nesting import Ints, nearest
from opscope.analysis.structure.selection import begins_within
from opscope.documents.trace import CounterEntry
from opscope.knowledge.categories import Category, Classifier
from opscope.knowledge.kernels.kinds import kind_of
from opscope.trace.model import Trace

UNLINKED = "Unlinked"
_NAMES_LOOKED_AT = 1_000  # of kernels; real programs have hundreds
NO_OPERATOR = "(no operator)"
GEOMETRY = ("grid", "block", "registers_per_thread", "shared_memory_bytes", "theoretical_occupancy_percent")
_INPUTS = ("input_dims", "input_types", "input_strides", "concrete_inputs", "kernel_file")


class MemoryUse(Struct, frozen=True):
    """Memory of one device (or of the host) during the recording, as PyTorch's allocator counts it.

    Attributes:
        device: the device number; None for the host.
        peak_allocated_bytes: the largest total that was allocated at any time; None where totals were not recorded.
        allocated_bytes: the sum of all allocations, releases not counted.
        allocations: how many there were.
        by_operator: ``name``, ``allocations``, ``allocated_bytes`` of the innermost operators; the most bytes first.
    """

    device: int | None
    peak_allocated_bytes: int | None
    allocated_bytes: int
    allocations: int
    by_operator: pl.DataFrame


# A cycle count of each kernel, which is its duration times a clock, and says nothing more.
_PER_KERNEL: Final = "Cycles (Current Kernel)"


def counter_sums(trace: Trace, spans: Intervals | None) -> tuple[CounterEntry, ...]:
    """Return what was sampled of devices within some time: power, clocks, utilisation.

    Args:
        trace: the trace.
        spans: from when to when; None for the whole recording.
    """
    sampled = trace.counters.with_columns(pl.col("name").cast(pl.String))
    if spans is not None and len(spans):
        sampled = sampled.filter(begins_within(zip(spans.start.tolist(), spans.end.tolist(), strict=True), "time_ns"))
    value = pl.col("value")
    sums = (
        sampled.filter(pl.col("name") != _PER_KERNEL)
        .group_by("device", "name")
        .agg(samples=pl.len(), least=value.min(), mean=value.mean(), most=value.max())
        .sort("device", "name", nulls_last=True)
    )
    return tuple(CounterEntry(**row) for row in sums.iter_rows(named=True))


def memory_use(trace: Trace, links: Links) -> tuple[MemoryUse, ...]:
    """Return the memory use of the host and of each device; empty where memory was not recorded."""
    if not trace.allocations.height:
        return ()
    owner = links.operators.innermost_at(column(trace.allocations, "thread"), column(trace.allocations, "time_ns"))
    names = trace.operators["name"].gather(pl.Series(owner).replace(-1, None))
    # Device type 0 is the host, whatever device number the record carries; a record without a type is the host's too.
    on_host = trace.allocations["device_type"].fill_null(0) == 0
    events = trace.allocations.with_columns(
        name=names, device=pl.when(on_host).then(None).otherwise(pl.col("device").fill_null(0))
    )
    return tuple(_use(device, group) for (device,), group in sorted(events.group_by("device"), key=_host_first))


def _host_first(item: tuple[tuple[object, ...], pl.DataFrame]) -> tuple[bool, int]:
    (device,), _ = item
    return device is not None, 0 if device is None else int(str(device))


def _use(device: object, events: pl.DataFrame) -> MemoryUse:
    grown = events.filter(pl.col("bytes") > 0)
    totals = events["total_allocated_bytes"].drop_nulls()
    operators = grown.group_by("name").agg(allocations=pl.len(), allocated_bytes=pl.col("bytes").sum())
    return MemoryUse(
        device=None if device is None else int(str(device)),
        peak_allocated_bytes=int(totals.to_numpy().max()) if len(totals) else None,
        allocated_bytes=int(grown["bytes"].sum()),
        allocations=grown.height,
        by_operator=costliest_first(
            operators.with_columns(pl.col("name").cast(pl.String)), ["allocated_bytes"], ["name"]
        ),
    )


class LaunchShape(Struct, frozen=True, kw_only=True):
    """One row of `launch_shapes`. Inputs are JSON text, grid and block ``x,y,z``; None where not recorded."""

    operator: str | None
    input_dims: str | None
    input_types: str | None
    input_strides: str | None
    concrete_inputs: str | None
    kernel_file: str | None
    name: str
    kind: str
    device: int | None
    grid: str | None
    block: str | None
    registers_per_thread: int | None
    shared_memory_bytes: int | None
    theoretical_occupancy_percent: float | None
    operator_calls: int
    calls: int
    total_ns: int
    mean_ns: float
    min_ns: int
    max_ns: int


def launch_shape_rows(shapes: pl.DataFrame) -> Iterator[LaunchShape]:
    """Yield the rows of a `launch_shapes` table."""
    return (LaunchShape(**row) for row in shapes.iter_rows(named=True))


def launch_shapes(trace: Trace, links: Links, inputs: pl.DataFrame, of: Ints | None = None) -> pl.DataFrame:
    """Return one row per operator, inputs, kernel and launch geometry; the most expensive first.

    Columns: ``operator`` and its inputs (null where none was recorded), ``name``, ``kind``, ``device``, the geometry,
    ``operator_calls`` (calls of the operator with these inputs that launched anything), ``calls``, ``total_ns``,
    ``mean_ns``, ``min_ns``, ``max_ns``. Inputs are those of the operator's innermost call: under autocast the
    converted ones.

    Args:
        trace: the trace.
        links: its links.
        inputs: its `inputs_of_activities`.
        of: rows of the activities that count; None for all.
    """
    owner = pl.Series(links.activity_operator, dtype=pl.Int64).replace(-1, None)
    duration = pl.col("duration_ns")
    key = ("operator", *_INPUTS, "kind", "name", "device", *GEOMETRY)
    # Grouping by codes is quicker than by texts; only the groups that result get their texts.
    rows = (
        trace.activities.select("name", "kind", "device", "duration_ns", *GEOMETRY)
        .with_columns(inputs, owner=owner)
        .select(pl.all() if of is None else pl.all().gather(of))
        # A call that launched several kernels is one call in the row of each. Work without an operator has no call: 0.
        .with_columns(operator_calls=pl.col("owner").drop_nulls().n_unique().over("operator", *_INPUTS, "device"))
        .group_by(key)
        .agg(
            pl.col("operator_calls").first(),
            pl.len().alias("calls"),
            duration.sum().alias("total_ns"),
            duration.mean().alias("mean_ns"),
            duration.min().alias("min_ns"),
            duration.max().alias("max_ns"),
        )
        .with_columns(pl.col("operator", *_INPUTS, "kind", "name", "grid", "block").cast(pl.String))
    )
    return costliest_first(rows, ["total_ns"], key)


def inputs_of_activities(trace: Trace, links: Links) -> pl.DataFrame:
    """Return per activity its operator and the recorded inputs of the innermost call; null where none were recorded."""
    owner = pl.Series(links.activity_operator, dtype=pl.Int64).replace(-1, None)
    call = pl.Series(call_rows(trace, links)).gather(owner)
    inputs = {name: _recorded(trace.operators[name], owner, call) for name in _INPUTS}
    return pl.DataFrame({"operator": trace.operators["name"].gather(owner), **inputs})


def _recorded(column: pl.Series, owner: pl.Series, call: pl.Series) -> pl.Series:
    """Return what was recorded for the operator itself, else for the call that it was redispatched from."""
    own = column.gather(owner)
    return own.zip_with(own.is_not_null(), column.gather(call))


def called_operators(trace: Trace, links: Links) -> pl.DataFrame:
    """Return which operators call which directly: ``operator``, ``called``, ``calls``; without redispatches."""
    parent = pl.Series(links.operators.parent, dtype=pl.Int64).replace(-1, None)
    names = trace.operators["name"]
    return (
        pl.DataFrame({"operator": names.gather(parent), "called": names})
        .drop_nulls("operator")
        .filter(pl.col("operator") != pl.col("called"))
        .group_by("operator", "called")
        .agg(pl.len().alias("calls"))
        .with_columns(pl.col("operator", "called").cast(pl.String))
        .sort("operator", "calls", "called", descending=[False, True, False])
    )


class OperatorTables(Struct, frozen=True):
    """What the operators of a trace cost.

    Attributes:
        operators: one row per operator name. ``total_*`` include nested operators; a name nested in itself is counted
            once. Totals must not be added up, ``self_*`` may be.
        shapes: one row per operator name, input shapes and input types. ``input_strides`` are the most frequent ones
            (null where none were recorded), ``stride_kinds`` how many different ones there are.
        kernels_of: one row per operator name, kernel name and launch geometry.
        categories: one row per category. The kernel's name decides on work of no operator; names that say nothing are
            a category of their own.
    """

    operators: pl.DataFrame
    shapes: pl.DataFrame
    kernels_of: pl.DataFrame
    categories: pl.DataFrame


def operator_slices(trace: Trace, links: Links) -> pl.DataFrame:
    """Return the trace's operators, one row per slice, with the times that each of them caused.

    An operator directly inside one of the same name is a redispatch of the same call (autocast, a scalar turned into
    a tensor, a mode or subclass that intercepts it): ``is_call`` is False for it, and ``call`` is the row of the call
    that it belongs to.
    """
    count = trace.operators.height
    owner = links.activity_operator[links.activity_operator >= 0]
    name_code = trace.operators["name"].to_physical().cast(pl.Int64).to_numpy()
    # Of a name nested in itself, only the outermost slice counts in totals.
    outermost, call = ~links.operators.inside_same(name_code), call_rows(trace, links)
    self_device = device_time_of_operators(trace, links)
    return trace.operators.with_columns(
        self_device_ns=self_device,
        total_device_ns=links.operators.subtree_sums(self_device),
        self_cpu_ns=operator_self_cpu(links),
        activities=np.bincount(owner, minlength=count).astype(np.int64, copy=False),
        outermost=outermost,
        call=call,
        is_call=call == np.arange(count),
    )


# What PyTorch records between an operator and the same one again, where a TorchDispatchMode or a subclass of Tensor
# intercepts it (c10/core/DispatchKey, torch 2.6 to 2.15).
_MODE: Final = "PythonDispatchMode"
_SUBCLASS: Final = "PythonSubclass"


def call_rows(trace: Trace, links: Links) -> Ints:
    """Return per slice of an operator the row of the call that it belongs to; see `operator_slices`."""
    parent = links.operators.parent
    if not len(parent):
        return parent
    name_code = trace.operators["name"].to_physical().to_numpy()
    between = names_that(trace.operators, lambda name: name in (_MODE, _SUBCLASS))
    around = parent
    if between.any():
        around = np.where(parent < 0, -1, nearest(parent, ~between)[np.maximum(parent, 0)])
    # A chain of equal names, each directly inside the next, is one call: that of its outermost operator.
    again = (around >= 0) & (name_code == name_code[np.maximum(around, 0)])
    call = nearest(around, ~again)
    if between.any():
        # A subclass may compute on other tensors, as DTensor does on a shard: the inputs of the call are those.
        inner = np.flatnonzero(
            again & names_that(trace.operators, lambda name: name == _SUBCLASS)[np.maximum(parent, 0)]
        )
        only = inner[np.bincount(call[inner], minlength=len(call))[call[inner]] == 1]
        stands_for = np.arange(len(call))
        stands_for[call[only]] = only
        call = stands_for[call]
    return call


def operator_tables(trace: Trace, links: Links, classifier: Classifier) -> OperatorTables:
    """Sum up the operators of a trace by name, shape, kernel and category."""
    slices = operator_slices(trace, links)
    launched = _activities_with_operator(trace, links)
    operators = _by_name(slices, classifier, _largest_kernel(launched))
    kernels_of = (
        launched.filter(pl.col("operator").is_not_null())
        .group_by("operator", "name", "kind", *GEOMETRY)
        .agg(**_duration_statistics())
        .with_columns(pl.col("operator", "name", "kind", "grid", "block").cast(pl.String))
    )
    return OperatorTables(
        operators=operators,
        shapes=_by_shape(slices),
        kernels_of=costliest_first(kernels_of, ["total_ns"], ["kind", "name", "operator", *GEOMETRY]),
        categories=_by_category(operators, launched),
    )


def with_unlinked(rows: pl.DataFrame, unlinked: pl.DataFrame) -> pl.DataFrame:
    """Add rows for what no operator launched, so that self device times add up to the device sum.

    Args:
        rows: operators by name, or by name and inputs; the most expensive first.
        unlinked: the activities that no operator launched; ``charged_to`` says what a replayed graph is charged to.
    """
    if not unlinked.height:
        return rows
    sums = unlinked.group_by(name=pl.col("charged_to").fill_null(NO_OPERATOR)).agg(
        pl.len().alias("activities"), pl.col("duration_ns").sum()
    )
    nothing = {"calls": 0, "self_cpu_ns": 0, "total_cpu_ns": 0, "category": UNLINKED}
    added = [
        {"name": name, "activities": count, **dict.fromkeys(("self_device_ns", "total_device_ns"), time), **nothing}
        for name, count, time in sums.sort("name").iter_rows()
    ]
    # Columns that these rows cannot have, such as inputs, are null.
    extra = pl.DataFrame({name: [row.get(name) for row in added] for name in rows.columns}, schema=rows.schema)
    return pl.concat([rows, extra]).sort("self_device_ns", "self_cpu_ns", descending=True, maintain_order=True)


def kernel_table(trace: Trace) -> pl.DataFrame:
    """Return one row per activity name and device, memcpy and memset rows included.

    ``std_ns`` is the population standard deviation over the recorded calls.
    """
    rows = trace.activities.group_by("name", "kind", "device").agg(**_duration_statistics())
    return costliest_first(rows, ["total_ns"], ["kind", "name", "device"])


def _duration_statistics() -> dict[str, pl.Expr]:
    duration = pl.col("duration_ns")
    return {
        "calls": pl.len(),
        "total_ns": duration.sum(),
        "mean_ns": duration.mean(),
        "min_ns": duration.min(),
        "max_ns": duration.max(),
        "std_ns": duration.std(ddof=0),
    }


def _outermost_sum(column: str) -> pl.Expr:
    return pl.col(column).filter("outermost").sum()


_OPERATOR_SUMS = {
    "calls": pl.col("is_call").sum(),
    "self_device_ns": pl.col("self_device_ns").sum(),
    "total_device_ns": _outermost_sum("total_device_ns"),
    "self_cpu_ns": pl.col("self_cpu_ns").sum(),
    "total_cpu_ns": _outermost_sum("duration_ns"),
    "activities": pl.col("activities").sum(),
}


def _largest_kernel(launched: pl.DataFrame) -> dict[str, str]:
    """Return the kernel that took most of each operator's time, for the most expensive operators."""
    kernels = launched.filter((pl.col("kind").cast(pl.String) == "kernel") & pl.col("operator").is_not_null())
    times = kernels.group_by("operator", "name").agg(pl.col("duration_ns").sum())
    times = times.with_columns(pl.col("operator", "name").cast(pl.String)).sort("duration_ns", "name")
    largest = times.group_by("operator", maintain_order=True).last().sort("duration_ns", "operator")
    return dict(largest.tail(_NAMES_LOOKED_AT).select("operator", "name").iter_rows())


def _category(name: str, classifier: Classifier, kernel: str | None) -> Category:
    """Return what kind of work an operator does; if that is not known, what its kernel does."""
    category = classifier.classify(name).category
    kind = kind_of(kernel) if category is Category.OTHER and kernel is not None else None
    return category if kind is None else kind.category


def _by_name(slices: pl.DataFrame, classifier: Classifier, kernels: Mapping[str, str]) -> pl.DataFrame:
    table = slices.group_by("name").agg(**_OPERATOR_SUMS).with_columns(pl.col("name").cast(pl.String))
    classifier.learn(table["name"].to_list())
    categories = [str(_category(name, classifier, kernels.get(name))) for name in table["name"]]
    table = table.with_columns(category=pl.Series(categories, dtype=pl.String))
    return costliest_first(table, ["self_device_ns", "self_cpu_ns"], ["name"])


def _by_shape(slices: pl.DataFrame) -> pl.DataFrame:
    recorded = slices.select("input_dims", "input_types", "input_strides")[slices["call"]]
    key = ("name", "input_dims", "input_types")
    strides = pl.col("input_strides")
    kinds = {"input_strides": strides.drop_nulls().mode().first().cast(pl.String), "stride_kinds": strides.n_unique()}
    rows = (
        slices.with_columns(recorded)
        .group_by(key)
        .agg(**_OPERATOR_SUMS, **kinds)
        .with_columns(pl.col(key).cast(pl.String))
    )
    return costliest_first(rows, ["self_device_ns", "self_cpu_ns"], key)


def _activities_with_operator(trace: Trace, links: Links) -> pl.DataFrame:
    owner = pl.Series(links.activity_operator)
    return trace.activities.with_columns(operator=trace.operators["name"].gather(owner.replace(-1, None)))


def _by_category(operators: pl.DataFrame, launched: pl.DataFrame) -> pl.DataFrame:
    unlinked = launched.filter(pl.col("operator").is_null())
    rows = operators.group_by("category").agg(
        pl.col("calls", "activities", "self_device_ns", "self_cpu_ns").sum(),
    )
    if unlinked.height:
        names = unlinked["name"].cast(pl.String)
        # Only the names of the most expensive kernels are read; the others count as unlinked. Copies and fills are
        # known by their kind.
        costliest = unlinked.group_by(name=names).agg(pl.col("duration_ns").sum()).sort("duration_ns", "name")
        looked_at = costliest["name"].tail(_NAMES_LOOKED_AT)
        kinds = {name: str(kind.category) if (kind := kind_of(name)) else UNLINKED for name in looked_at}
        moves = pl.col("kind").cast(pl.String).is_in(["memcpy", "memset"])
        by_name = pl.Series(names.replace_strict(kinds, default=UNLINKED, return_dtype=pl.String))
        extra = (
            unlinked.group_by(category=pl.when(moves).then(pl.lit(str(Category.MEMORY))).otherwise(by_name))
            .agg(activities=pl.len().cast(pl.Int64), self_device_ns=pl.col("duration_ns").sum())
            .with_columns(calls=pl.lit(0, pl.UInt32), self_cpu_ns=pl.lit(0, pl.Int64))
        )
        rows = pl.concat([rows, extra.select(rows.columns)], how="vertical_relaxed")
        rows = rows.group_by("category").agg(pl.exclude("category").sum())
    return costliest_first(rows, ["self_device_ns", "self_cpu_ns"], ["category"])
