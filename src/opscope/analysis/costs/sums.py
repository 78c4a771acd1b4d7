"""Tables per operator and per kernel: every duration belongs to exactly one operator, or is listed as unlinked."""

from collections.abc import Mapping

import numpy as np
import polars as pl
from msgspec import Struct

from opscope.analysis.structure.arrays import costliest_first
from opscope.analysis.structure.links import Links, device_time_of_operators, operator_self_cpu
from opscope.analysis.structure.nesting import Ints, nearest
from opscope.knowledge.categories import Category, Classifier
from opscope.knowledge.kernels.kinds import kind_of
from opscope.trace.model import Trace

UNLINKED = "Unlinked"
_NAMES_LOOKED_AT = 1_000  # of kernels; real programs have hundreds
NO_OPERATOR = "(no operator)"
GEOMETRY = ("grid", "block", "registers_per_thread", "shared_memory_bytes", "theoretical_occupancy_percent")


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
    a tensor): ``is_call`` is False for it, and ``call`` is the row of the call it belongs to.
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


def call_rows(trace: Trace, links: Links) -> Ints:
    """Return per slice of an operator the row of the call that it belongs to; see `operator_slices`."""
    parent = links.operators.parent
    name_code = trace.operators["name"].to_physical().to_numpy()
    if not len(parent):
        return parent
    # A chain of equal names, each directly inside the next, is one call: that of its outermost operator.
    return nearest(parent, (parent < 0) | (name_code != name_code[np.maximum(parent, 0)]))


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
