"""Which inputs of which operators launched which kernels, with the launch geometry."""

from collections.abc import Iterator

import polars as pl
from msgspec import Struct

from opscope.analysis.costs.sums import GEOMETRY, call_rows
from opscope.analysis.structure.arrays import costliest_first
from opscope.analysis.structure.links import Links
from opscope.analysis.structure.nesting import Ints
from opscope.trace.model import Trace

_INPUTS = ("input_dims", "input_types", "input_strides", "concrete_inputs", "kernel_file")


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
