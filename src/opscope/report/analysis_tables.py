"""An analysis as a table: by operator, kernel, shape, module, category, step, gap, iteration and more."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from opscope.analysis.analyzed import Analysis
from opscope.analysis.rows import gaps_table, iterations_table, steps_table
from opscope.analysis.structure.annotations import SEPARATOR
from opscope.base.errors import UsageError
from opscope.base.shapes import tensor_shapes
from opscope.base.units import format_count, format_ns, format_share
from opscope.knowledge.kernels.kinds import short_name
from opscope.render.blocks import Name, Table
from opscope.report.by import By


@dataclass(frozen=True, slots=True)
class _Column:
    """A column as people see it: heading, and how its values are written (given the value and the analysis).

    ``optional`` ones are left out where a terminal has no room.
    """

    heading: str
    text: Callable[[Any, Analysis], str]
    numeric: bool = True
    optional: bool = False


def _plain(value: Any, _: Analysis) -> str:
    return "-" if value is None else Name(value)


def _shapes(value: Any, _: Analysis) -> str:
    return "-" if value is None else Name(tensor_shapes(value))


def _kernel(value: Any, _: Analysis) -> str:
    """Name an activity by what its name means."""
    return "-" if value is None else Name(short_name(value))


def _range(value: Any, _: Analysis) -> str:
    """Indent a nested range under the one around it."""
    *outer, name = str(value).split(SEPARATOR)
    return Name(f"{'. ' * len(outer)}{name}")


def _count(value: Any, _: Analysis) -> str:
    return format_count(value)


def _time(value: Any, _: Analysis) -> str:
    return format_ns(value)


def _device_time(value: Any, analysis: Analysis) -> str:
    return format_ns(value) if analysis.has_device_times else "-"


def _of_device_sum(value: Any, analysis: Analysis) -> str:
    return format_share(value, analysis.accounting.activities_ns or None)


def _of_window(value: Any, analysis: Analysis) -> str:
    return format_share(value, max((line.window.duration_ns for line in analysis.devices), default=0) or None)


def _yes(value: Any, _: Analysis) -> str:
    return "yes" if value else "no"


_NAME = {"name": _Column("Name", _plain, numeric=False)}
_OPERATOR_TIMES = {
    "calls": _Column("Calls", _count),
    "self_device_ns": _Column("Self device", _device_time),
    "share": _Column("of device sum", _of_device_sum),
    "total_device_ns": _Column("Total device", _device_time),
    "self_cpu_ns": _Column("Self CPU", _time),
    "total_cpu_ns": _Column("Total CPU", _time, optional=True),
    "activities": _Column("Activities", _count, optional=True),
}
_COLUMNS: Mapping[By, Mapping[str, _Column]] = {
    By.OPERATOR: {**_NAME, "category": _Column("Category", _plain, numeric=False, optional=True), **_OPERATOR_TIMES},
    By.SHAPE: {
        **_NAME,
        "input_dims": _Column("Input shapes", _shapes, numeric=False),
        "input_types": _Column("Input types", _plain, numeric=False, optional=True),
        **_OPERATOR_TIMES,
    },
    By.KERNEL: {
        "kind": _Column("Kind", _plain, numeric=False, optional=True),
        "device": _Column("Device", _count, optional=True),
        "calls": _Column("Calls", _count),
        "total_ns": _Column("Total", _time),
        "share": _Column("of device sum", _of_device_sum),
        "mean_ns": _Column("Mean", _time),
        "min_ns": _Column("Min", _time, optional=True),
        "max_ns": _Column("Max", _time, optional=True),
        "std_ns": _Column("Std", _time, optional=True),
        "name": _Column("Name", _plain, numeric=False),
    },
    By.MODULE: {
        "module": _Column("Module", _plain, numeric=False),
        "calls": _Column("Calls", _count),
        "self_device_ns": _Column("Self device", _device_time),
        "share": _Column("of device sum", _of_device_sum),
        "total_device_ns": _Column("Total device", _device_time),
    },
    By.CATEGORY: {
        "category": _Column("Category", _plain, numeric=False, optional=True),
        "calls": _Column("Calls", _count),
        "activities": _Column("Activities", _count, optional=True),
        "self_device_ns": _Column("Self device", _device_time),
        "share": _Column("of device sum", _of_device_sum),
        "self_cpu_ns": _Column("Self CPU", _time),
    },
    By.STEP: {
        "number": _Column("Step", _count),
        "device": _Column("Device", _count, optional=True),
        "span_ns": _Column("Span", _time),
        "activities": _Column("Activities", _count, optional=True),
        "device_sum_ns": _Column("Device sum", _time),
        "busy_ns": _Column("Busy", _time),
        "idle_ns": _Column("Idle", _time),
        "launch_bound_ns": _Column("of it launch-bound", _time),
        "cold": _Column("Cold", _yes, numeric=False),
    },
    By.GAP: {
        "duration_ns": _Column("Gap", _time),
        "share": _Column("of window", _of_window),
        "step": _Column("Step", _count),
        "device": _Column("Device", _count, optional=True),
        "cause": _Column("Cause", _plain, numeric=False),
        "cause_ns": _Column("of it", _time),
        "call": _Column("Call", _plain, numeric=False),
        "where": _Column("Inside", _plain, numeric=False),
        "before": _Column("After", _kernel, numeric=False, optional=True),
        "after": _Column("Before", _kernel, numeric=False, optional=True),
    },
    By.STREAM: {
        "device": _Column("Device", _count, optional=True),
        "stream": _Column("Stream", _count),
        "activities": _Column("Activities", _count, optional=True),
        "sum_ns": _Column("Sum", _time),
        "share": _Column("of device sum", _of_device_sum),
        "busy_ns": _Column("Busy", _time),
        "first_ns": _Column("First start", _count),
        "last_ns": _Column("Last end", _count),
    },
    By.GRAPH: {
        "device": _Column("Device", _count, optional=True),
        "graph": _Column("Graph", _count),
        "node": _Column("Node", _count),
        "replays": _Column("Replays", _count),
        "total_ns": _Column("Total", _time),
        "share": _Column("of device sum", _of_device_sum),
        "mean_ns": _Column("Mean", _time),
        "captured_operator": _Column("Captured operator", _plain, numeric=False),
        "name": _Column("Name", _plain, numeric=False),
    },
    By.CAPTURED: {
        "launches": _Column("Launches", _count),
        "name": _Column("Operator", _plain, numeric=False),
        "input_dims": _Column("Input shapes", _shapes, numeric=False),
        "input_types": _Column("Types", _plain, numeric=False, optional=True),
    },
    By.BACKWARD: {
        "forward": _Column("Forward operator", _plain, numeric=False),
        "backward": _Column("Backward node", _plain, numeric=False),
        "calls": _Column("Calls", _count),
        "forward_device_ns": _Column("Forward device", _device_time),
        "backward_device_ns": _Column("Backward device", _device_time),
        "share": _Column("of device sum", _of_device_sum),
    },
    By.ANNOTATION: {
        "path": _Column("Range", _range, numeric=False),
        "calls": _Column("Calls", _count),
        "self_device_ns": _Column("Self device", _device_time),
        "share": _Column("of device sum", _of_device_sum),
        "total_device_ns": _Column("Total device", _device_time),
        "span_ns": _Column("Span", _time),
        "self_cpu_ns": _Column("Span without ranges inside", _time, optional=True),
    },
    By.ITERATION: {
        "kind": _Column("Iteration", _plain, numeric=False),
        "requests": _Column("Requests", _count),
        "tokens": _Column("Tokens", _count),
        "detail": _Column("Detail", _plain, numeric=False, optional=True),
        "iterations": _Column("Iterations", _count),
        "total_ns": _Column("Total", _time),
        "share": _Column("of device sum", _of_device_sum),
        "median_ns": _Column("Median", _time),
        "host_ns": _Column("Host range", _time, optional=True),
        "idle_ns": _Column("Idle", _time),
        "bound": _Column("Bound", _plain, numeric=False),
    },
}
_SHARE_OF = {
    By.KERNEL: "total_ns",
    By.GAP: "duration_ns",
    By.STREAM: "sum_ns",
    By.GRAPH: "total_ns",
    By.BACKWARD: "backward_device_ns",
    By.ITERATION: "device_sum_ns",
}  # whose share "of device sum" is, where not self device time


def rows_by(analysis: Analysis, by: By, sort: str | None = None) -> pl.DataFrame:
    """Return the rows of a table with all their figures, the most expensive first (steps and streams in order).

    Args:
        analysis: of one trace.
        by: what a row stands for.
        sort: a column to sort by instead, by its name or its heading: numbers descending, text ascending.

    Raises:
        UsageError: the trace does not record what the rows need, or there is no such column.
    """
    table = _table(analysis, by)
    if sort is None:
        return table
    name = _column_named(sort, by, table)
    return table.sort(name, descending=table.schema[name].is_numeric(), nulls_last=True, maintain_order=True)


def _column_named(text: str, by: By, table: pl.DataFrame) -> str:
    """Return the column that a name or a heading means, whatever its case."""
    if text in table.columns:
        return text
    headings = {column.heading.casefold(): name for name, column in _COLUMNS[by].items()}
    name = headings.get(text.casefold())
    name = weight_of(by) if name == "share" else name
    if name is None or name not in table.columns:
        known = ", ".join(column.heading for column in _COLUMNS[by].values())
        raise UsageError(
            f"--sort takes a column of --by {by}, as a heading ({known}) or as --format csv names it "
            f"({', '.join(table.columns)}); not {text!r}"
        )
    return name


def weight_of(by: By) -> str:
    """Return the column whose share of the device sum a table shows."""
    return _SHARE_OF.get(by, "self_device_ns")


def _table(analysis: Analysis, by: By) -> pl.DataFrame:
    tables: Mapping[By, Callable[[], pl.DataFrame]] = {
        By.OPERATOR: lambda: analysis.operators_and_unlinked,
        By.SHAPE: lambda: analysis.shapes_and_unlinked,
        By.KERNEL: lambda: analysis.kernels.with_columns(pl.col("name", "kind").cast(pl.String)),
        By.MODULE: lambda: _modules(analysis),
        By.CATEGORY: lambda: analysis.categories,
        By.STEP: lambda: steps_table(analysis),
        By.GAP: lambda: gaps_table(analysis),
        By.STREAM: lambda: analysis.streams,
        By.GRAPH: lambda: analysis.graph_nodes,
        By.CAPTURED: lambda: analysis.captured,
        By.BACKWARD: lambda: analysis.backward,
        By.ANNOTATION: lambda: analysis.annotations,
        By.ITERATION: lambda: iterations_table(analysis),
    }
    return tables[by]()


def _modules(analysis: Analysis) -> pl.DataFrame:
    if analysis.modules is None:
        raise UsageError("the trace records no modules: capture it with Python stacks (opscope profile --with-stack)")
    return analysis.modules


def table_by(analysis: Analysis, by: By, *, sort: str | None, top: int | None, short_names: bool = False) -> Table:
    """Build the table for people.

    Args:
        analysis: of one trace.
        by: what a row stands for.
        sort: see `rows_by`.
        top: how many rows; None for all.
        short_names: whether kernels are named by what their names mean.
    """
    rows = rows_by(analysis, by, sort)
    columns = _COLUMNS[by]
    weight = weight_of(by)
    cells = tuple(
        tuple(
            _short(row) if short_names and key == "name" and by in _KERNEL_NAMES
            else column.text(row.get(weight if key == "share" else key), analysis)
            for key, column in columns.items()
        )
        for row in rows.head(rows.height if top is None else top).iter_rows(named=True)
    )  # fmt: skip
    numeric = frozenset(i for i, column in enumerate(columns.values()) if column.numeric)
    optional = frozenset(i for i, column in enumerate(columns.values()) if column.optional)
    return Table(tuple(column.heading for column in columns.values()), cells, numeric, optional)


_KERNEL_NAMES = (By.KERNEL, By.GRAPH)  # tables whose names are those of kernels


def _short(row: Mapping[str, Any]) -> str:
    return Name(short_name(row["name"]))


def values_by(analyses: Mapping[str, Analysis], by: By, *, sort: str | None, top: int | None) -> Table:
    """Build the table for programs: exact figures of every trace; empty where unknown."""
    tables = {trace: rows_by(analysis, by, sort) for trace, analysis in analyses.items()}
    rows = (
        (trace, *("" if value is None else str(value) for value in values))
        for trace, table in tables.items()
        for values in table.head(table.height if top is None else top).iter_rows()
    )
    return Table(("trace", *next(iter(tables.values())).columns), tuple(rows))
