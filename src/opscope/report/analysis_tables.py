"""An analysis as a table: by operator, kernel, shape, module, category, step, stream, graph or backward."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from opscope.analysis.analyzed import Analysis
from opscope.analysis.steps import Step
from opscope.errors import UsageError
from opscope.report.blocks import Name, Table
from opscope.report.by import By
from opscope.units import format_count, format_ns, format_share


@dataclass(frozen=True, slots=True)
class _Column:
    """A column as people see it: heading, and how its values are written (given the value and the analysis)."""

    heading: str
    text: Callable[[Any, Analysis], str]
    numeric: bool = True


def _plain(value: Any, _: Analysis) -> str:
    return "-" if value is None else Name(value)


def _count(value: Any, _: Analysis) -> str:
    return format_count(value)


def _time(value: Any, _: Analysis) -> str:
    return format_ns(value)


def _device_time(value: Any, analysis: Analysis) -> str:
    return format_ns(value) if analysis.has_device_times else "-"


def _of_device_sum(value: Any, analysis: Analysis) -> str:
    return format_share(value, analysis.accounting.activities_ns or None)


def _yes(value: Any, _: Analysis) -> str:
    return "yes" if value else "no"


_NAME = {"name": _Column("Name", _plain, numeric=False)}
_OPERATOR_TIMES = {
    "calls": _Column("Calls", _count),
    "self_device_ns": _Column("Self device", _device_time),
    "share": _Column("of device sum", _of_device_sum),
    "total_device_ns": _Column("Total device", _device_time),
    "self_cpu_ns": _Column("Self CPU", _time),
    "total_cpu_ns": _Column("Total CPU", _time),
    "activities": _Column("Activities", _count),
}
_COLUMNS: Mapping[By, Mapping[str, _Column]] = {
    By.OPERATOR: {**_NAME, "category": _Column("Category", _plain, numeric=False), **_OPERATOR_TIMES},
    By.SHAPE: {
        **_NAME,
        "input_dims": _Column("Input shapes", _plain, numeric=False),
        "input_types": _Column("Input types", _plain, numeric=False),
        **_OPERATOR_TIMES,
    },
    By.KERNEL: {
        "kind": _Column("Kind", _plain, numeric=False),
        "device": _Column("Device", _count),
        "calls": _Column("Calls", _count),
        "total_ns": _Column("Total", _time),
        "share": _Column("of device sum", _of_device_sum),
        "mean_ns": _Column("Mean", _time),
        "min_ns": _Column("Min", _time),
        "max_ns": _Column("Max", _time),
        "std_ns": _Column("Std", _time),
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
        "category": _Column("Category", _plain, numeric=False),
        "calls": _Column("Calls", _count),
        "activities": _Column("Activities", _count),
        "self_device_ns": _Column("Self device", _device_time),
        "share": _Column("of device sum", _of_device_sum),
        "self_cpu_ns": _Column("Self CPU", _time),
    },
    By.STEP: {
        "number": _Column("Step", _count),
        "device": _Column("Device", _count),
        "span_ns": _Column("Span", _time),
        "activities": _Column("Activities", _count),
        "device_sum_ns": _Column("Device sum", _time),
        "busy_ns": _Column("Busy", _time),
        "idle_ns": _Column("Idle", _time),
        "launch_bound_ns": _Column("of it launch-bound", _time),
        "cold": _Column("Cold", _yes, numeric=False),
    },
    By.STREAM: {
        "device": _Column("Device", _count),
        "stream": _Column("Stream", _count),
        "activities": _Column("Activities", _count),
        "sum_ns": _Column("Sum", _time),
        "share": _Column("of device sum", _of_device_sum),
        "busy_ns": _Column("Busy", _time),
        "first_ns": _Column("First start", _count),
        "last_ns": _Column("Last end", _count),
    },
    By.GRAPH: {
        "device": _Column("Device", _count),
        "graph": _Column("Graph", _count),
        "node": _Column("Node", _count),
        "replays": _Column("Replays", _count),
        "total_ns": _Column("Total", _time),
        "share": _Column("of device sum", _of_device_sum),
        "mean_ns": _Column("Mean", _time),
        "captured_operator": _Column("Captured operator", _plain, numeric=False),
        "name": _Column("Name", _plain, numeric=False),
    },
    By.BACKWARD: {
        "forward": _Column("Forward operator", _plain, numeric=False),
        "backward": _Column("Backward node", _plain, numeric=False),
        "calls": _Column("Calls", _count),
        "forward_device_ns": _Column("Forward device", _device_time),
        "backward_device_ns": _Column("Backward device", _device_time),
        "share": _Column("of device sum", _of_device_sum),
    },
}
_SHARE_OF = {
    By.KERNEL: "total_ns",
    By.STREAM: "sum_ns",
    By.GRAPH: "total_ns",
    By.BACKWARD: "backward_device_ns",
}  # whose share "of device sum" is, where not self device time


def rows_by(analysis: Analysis, by: By, sort: str | None = None) -> pl.DataFrame:
    """Return the rows of a table with all their figures, the most expensive first (steps and streams in order).

    Args:
        analysis: of one trace.
        by: what a row stands for.
        sort: a column to sort by instead: numbers in descending, text in ascending order.

    Raises:
        UsageError: the trace does not record what the rows need, or there is no such column.
    """
    table = _table(analysis, by)
    if sort is None:
        return table
    if sort not in table.columns:
        raise UsageError(f"--sort takes a column of --by {by}: {', '.join(table.columns)}; not {sort!r}")
    return table.sort(sort, descending=table.schema[sort].is_numeric(), nulls_last=True, maintain_order=True)


def _table(analysis: Analysis, by: By) -> pl.DataFrame:
    tables: Mapping[By, Callable[[], pl.DataFrame]] = {
        By.OPERATOR: lambda: analysis.operators,
        By.SHAPE: lambda: analysis.shapes,
        By.KERNEL: lambda: analysis.kernels.with_columns(pl.col("name", "kind").cast(pl.String)),
        By.MODULE: lambda: _modules(analysis),
        By.CATEGORY: lambda: analysis.categories,
        By.STEP: lambda: _steps(analysis),
        By.STREAM: lambda: analysis.streams,
        By.GRAPH: lambda: analysis.graph_nodes,
        By.BACKWARD: lambda: analysis.backward,
    }
    return tables[by]()


def _modules(analysis: Analysis) -> pl.DataFrame:
    if analysis.modules is None:
        raise UsageError("the trace records no modules: capture it with Python stacks (opscope profile --with-stack)")
    return analysis.modules


def _steps(analysis: Analysis) -> pl.DataFrame:
    columns = {name: [getattr(step, name) for step in analysis.steps] for name in Step.__slots__}
    return pl.DataFrame(columns)


def table_by(analysis: Analysis, by: By, *, sort: str | None, top: int | None) -> Table:
    """Build the table for people; ``top`` limits the rows."""
    rows = rows_by(analysis, by, sort)
    columns = _COLUMNS[by]
    weight = _SHARE_OF.get(by, "self_device_ns")
    cells = tuple(
        tuple(column.text(row.get(weight if key == "share" else key), analysis) for key, column in columns.items())
        for row in rows.head(rows.height if top is None else top).iter_rows(named=True)
    )
    numeric = frozenset(i for i, column in enumerate(columns.values()) if column.numeric)
    return Table(tuple(column.heading for column in columns.values()), cells, numeric)


def values_by(analyses: Mapping[str, Analysis], by: By, *, sort: str | None, top: int | None) -> Table:
    """Build the table for programs: exact figures of every trace; empty where unknown."""
    tables = {trace: rows_by(analysis, by, sort) for trace, analysis in analyses.items()}
    rows = (
        (trace, *("" if value is None else str(value) for value in values))
        for trace, table in tables.items()
        for values in table.head(table.height if top is None else top).iter_rows()
    )
    return Table(("trace", *next(iter(tables.values())).columns), tuple(rows))
