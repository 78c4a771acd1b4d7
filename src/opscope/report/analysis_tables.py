"""Tables of an analysis by operator, kernel, shape, module, category, step, gap, iteration and more."""

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
from msgspec import Struct

from opscope.analysis.analyzed import Analysis
from opscope.analysis.rows import gaps_table, iterations_table, steps_table
from opscope.analysis.structure.annotations import RANGE_SEPARATOR
from opscope.analysis.structure.arrays import kept
from opscope.base.errors import UsageError
from opscope.base.units import format_bytes, format_count, format_ns, format_share, tensor_shapes
from opscope.knowledge.kernels.kinds import short_name
from opscope.knowledge.kernels.kinds import short_names as in_short
from opscope.render.blocks import Name, Table
from opscope.render.table_formats import Column, table_of
from opscope.report.by import By


class _FrameColumn(Struct, frozen=True):
    """A column for people: its heading, and a function that formats a value (it also gets the analysis).

    ``optional`` columns are left out if a terminal has no room.
    """

    heading: str
    text: Callable[[Any, Analysis], str]
    numeric: bool = True
    optional: bool = False


def _plain(value: Any, _: Analysis) -> str:
    return "-" if value is None else Name(value)


def _shapes(value: Any, _: Analysis) -> str:
    return "-" if value is None else Name(tensor_shapes(value) or "-")


def _kernel(value: Any, _: Analysis) -> str:
    """Format the short name of an activity."""
    return "-" if value is None else Name(short_name(value))


def _range(value: Any, _: Analysis) -> str:
    """Indent a nested range under the one around it."""
    *outer, name = str(value).split(RANGE_SEPARATOR)
    return Name(f"{'. ' * len(outer)}{name}")


def _branch(value: Any, analysis: Analysis) -> str:
    """Indent a node of a tree under the one around it; kernels have their short names."""
    *outer, name = str(value).split(RANGE_SEPARATOR)
    kernels = kept(analysis.kernels, "names", lambda: frozenset(analysis.kernels["name"].cast(pl.String)))
    return Name(f"{'. ' * len(outer)}{short_name(name) if name in kernels else name}")


def _count(value: Any, _: Analysis) -> str:
    return format_count(value)


def _time(value: Any, _: Analysis) -> str:
    return format_ns(value)


def _device_time(value: Any, analysis: Analysis) -> str:
    # If no device work was recorded, the zeros of the tables are unknown times.
    return format_ns(value) if analysis.has_device_times else "-"


def _of_device_sum(value: Any, analysis: Analysis) -> str:
    return format_share(value, analysis.accounting.activities_ns or None)


def _since_begin(value: Any, analysis: Analysis) -> str:
    return format_ns(value - analysis.window.start_ns)


def _bytes(value: Any, _: Analysis) -> str:
    return format_bytes(value)


def _of_window(value: Any, analysis: Analysis) -> str:
    # Of the longest window, because one table has the gaps of all devices.
    return format_share(value, max((line.window.duration_ns for line in analysis.devices), default=0) or None)


def _of_replayed(value: Any, analysis: Analysis) -> str:
    return format_share(value, int(analysis.critical_operators["on_path_ns"].sum()) or None)


def _of_a_microsecond(value: Any, _: Analysis) -> str:
    return "-" if value is None else f"{value:.2f} us"


def _yes(value: Any, _: Analysis) -> str:
    return "yes" if value else "no"


_NAME = {"name": _FrameColumn("Name", _plain, numeric=False)}
_CATEGORY = {"category": _FrameColumn("Category", _plain, numeric=False, optional=True)}
_OPERATOR_TIMES = {
    "calls": _FrameColumn("Calls", _count),
    "self_device_ns": _FrameColumn("Self device", _device_time),
    "share": _FrameColumn("of device sum", _of_device_sum),
    "total_device_ns": _FrameColumn("Total device", _device_time, optional=True),
    "self_cpu_ns": _FrameColumn("Self CPU", _time),
    "total_cpu_ns": _FrameColumn("Total CPU", _time, optional=True),
    "activities": _FrameColumn("Activities", _count, optional=True),
}
# Keys are columns of the frames of `_table`, except ``share``: that is the share of `weight_of`.
_COLUMNS: Mapping[By, Mapping[str, _FrameColumn]] = {
    By.OPERATOR: {
        **_NAME,
        **_CATEGORY,
        **_OPERATOR_TIMES,
    },
    By.SHAPE: {
        **_NAME,
        "input_dims": _FrameColumn("Input shapes", _shapes, numeric=False),
        "input_types": _FrameColumn("Input types", _plain, numeric=False, optional=True),
        "input_strides": _FrameColumn("Strides", _shapes, numeric=False, optional=True),
        **_OPERATOR_TIMES,
    },
    By.KERNEL: {
        "kind": _FrameColumn("Kind", _plain, numeric=False, optional=True),
        "device": _FrameColumn("Device", _count, optional=True),
        "calls": _FrameColumn("Calls", _count),
        "total_ns": _FrameColumn("Total", _time),
        "share": _FrameColumn("of device sum", _of_device_sum),
        "mean_ns": _FrameColumn("Mean", _time),
        "min_ns": _FrameColumn("Min", _time, optional=True),
        "max_ns": _FrameColumn("Max", _time, optional=True),
        "std_ns": _FrameColumn("Std", _time, optional=True),
        "name": _FrameColumn("Name", _plain, numeric=False),
    },
    By.MODULE: {
        "module": _FrameColumn("Module", _plain, numeric=False),
        "calls": _FrameColumn("Calls", _count),
        "self_device_ns": _FrameColumn("Self device", _device_time),
        "share": _FrameColumn("of device sum", _of_device_sum),
        "total_device_ns": _FrameColumn("Total device", _device_time),
    },
    By.CATEGORY: {
        "category": _FrameColumn("Category", _plain, numeric=False, optional=True),
        "calls": _FrameColumn("Calls", _count),
        "activities": _FrameColumn("Activities", _count, optional=True),
        "self_device_ns": _FrameColumn("Self device", _device_time),
        "share": _FrameColumn("of device sum", _of_device_sum),
        "self_cpu_ns": _FrameColumn("Self CPU", _time),
    },
    By.STEP: {
        "number": _FrameColumn("Step", _count),
        "device": _FrameColumn("Device", _count, optional=True),
        "span_ns": _FrameColumn("Span", _time),
        "activities": _FrameColumn("Activities", _count, optional=True),
        "device_sum_ns": _FrameColumn("Device sum", _time),
        "busy_ns": _FrameColumn("Busy", _time),
        "idle_ns": _FrameColumn("Idle", _time),
        "launch_bound_ns": _FrameColumn("Launch-bound idle", _time),
        "cold": _FrameColumn("Cold", _yes, numeric=False),
    },
    By.GAP: {
        "duration_ns": _FrameColumn("Gap", _time),
        "share": _FrameColumn("of window", _of_window),
        "step": _FrameColumn("Step", _count),
        "device": _FrameColumn("Device", _count, optional=True),
        "cause": _FrameColumn("Cause", _plain, numeric=False),
        "cause_ns": _FrameColumn("of it", _time),
        "call": _FrameColumn("Call", _plain, numeric=False),
        "where": _FrameColumn("Inside", _plain, numeric=False),
        "before": _FrameColumn("After", _kernel, numeric=False, optional=True),
        "after": _FrameColumn("Before", _kernel, numeric=False, optional=True),
    },
    By.STREAM: {
        "device": _FrameColumn("Device", _count, optional=True),
        "stream": _FrameColumn("Stream", _count),
        "activities": _FrameColumn("Activities", _count, optional=True),
        "sum_ns": _FrameColumn("Sum", _time),
        "share": _FrameColumn("of device sum", _of_device_sum),
        "busy_ns": _FrameColumn("Busy", _time),
        "first_ns": _FrameColumn("First start", _count),
        "last_ns": _FrameColumn("Last end", _count),
    },
    By.GRAPH: {
        "device": _FrameColumn("Device", _count, optional=True),
        "graph": _FrameColumn("Graph", _count),
        "node": _FrameColumn("Node", _count),
        "replays": _FrameColumn("Replays", _count),
        "total_ns": _FrameColumn("Total", _time),
        "share": _FrameColumn("of device sum", _of_device_sum),
        "mean_ns": _FrameColumn("Mean", _time),
        "captured_operator": _FrameColumn("Captured operator", _plain, numeric=False),
        "name": _FrameColumn("Name", _plain, numeric=False),
    },
    By.CAPTURED: {
        "launches": _FrameColumn("Launches", _count),
        "name": _FrameColumn("Operator", _plain, numeric=False),
        "input_dims": _FrameColumn("Input shapes", _shapes, numeric=False),
        "input_types": _FrameColumn("Types", _plain, numeric=False, optional=True),
    },
    By.BACKWARD: {
        "forward": _FrameColumn("Forward operator", _plain, numeric=False),
        "backward": _FrameColumn("Backward node", _plain, numeric=False),
        "calls": _FrameColumn("Calls", _count),
        "forward_device_ns": _FrameColumn("Forward device", _device_time),
        "backward_device_ns": _FrameColumn("Backward device", _device_time),
        "share": _FrameColumn("of device sum", _of_device_sum),
    },
    By.ANNOTATION: {
        "path": _FrameColumn("Range", _range, numeric=False),
        "calls": _FrameColumn("Calls", _count),
        "self_device_ns": _FrameColumn("Self device", _device_time),
        "share": _FrameColumn("of device sum", _of_device_sum),
        "total_device_ns": _FrameColumn("Total device", _device_time),
        "span_ns": _FrameColumn("Span", _time),
        "self_cpu_ns": _FrameColumn("Span without ranges inside", _time, optional=True),
    },
    By.ITERATION: {
        "kind": _FrameColumn("Iteration", _plain, numeric=False),
        "requests": _FrameColumn("Requests", _count),
        "tokens": _FrameColumn("Tokens", _count),
        "detail": _FrameColumn("Detail", _plain, numeric=False, optional=True),
        "iterations": _FrameColumn("Iterations", _count),
        "total_ns": _FrameColumn("Total", _time),
        "share": _FrameColumn("of device sum", _of_device_sum),
        "median_ns": _FrameColumn("Median", _time),
        "host_ns": _FrameColumn("Host range", _time, optional=True),
        "idle_ns": _FrameColumn("Idle", _time),
        "bound": _FrameColumn("Bound", _plain, numeric=False),
    },
    By.CRITICAL: {
        **_NAME,
        "on_path_ns": _FrameColumn("On the path", _time),
        "share": _FrameColumn("of the step", _of_replayed),
        "device_ns": _FrameColumn("Device work", _time),
        "saves": _FrameColumn("A us less saves", _of_a_microsecond),
        "slack_ns": _FrameColumn("Slack", _time),
    },
    By.QUEUE: {
        "launches": _FrameColumn("Launches", _count),
        "api_ns": _FrameColumn("Call", _time),
        "latencies": _FrameColumn("To an empty stream", _count),
        "latency_ns": _FrameColumn("Latency", _time),
        "backlogs": _FrameColumn("Behind work", _count),
        "backlog_ns": _FrameColumn("Backlog", _time),
        "waiting": _FrameColumn("Waiting", _count),
        "device_ns": _FrameColumn("Device time", _time, optional=True),
        "device": _FrameColumn("Device", _count, optional=True),
        "name": _FrameColumn("Name", _plain, numeric=False),
    },
    By.QUEUE_OVER_TIME: {
        "device": _FrameColumn("Device", _count, optional=True),
        "from_ns": _FrameColumn("From", _since_begin),
        "to_ns": _FrameColumn("To", _since_begin),
        "launches": _FrameColumn("Launches", _count),
        "latencies": _FrameColumn("To an empty stream", _count, optional=True),
        "latency_ns": _FrameColumn("Latency", _time),
        "backlogs": _FrameColumn("Behind work", _count, optional=True),
        "backlog_ns": _FrameColumn("Backlog", _time),
        "waiting": _FrameColumn("Waiting", _count),
        "most_waiting": _FrameColumn("at most", _count),
    },
    By.CHAIN: {
        "kind": _FrameColumn("Kind", _plain, numeric=False),
        "count": _FrameColumn("Count", _count),
        "total_ns": _FrameColumn("Total", _time),
        "share": _FrameColumn("of device sum", _of_device_sum),
        "mean_ns": _FrameColumn("Once", _time),
        "least_bytes": _FrameColumn("Moves at least", _bytes),
        "sequence": _FrameColumn("Sequence", _plain, numeric=False),
    },
    By.TREE: {
        "path": _FrameColumn("Name", _branch, numeric=False),
        "calls": _FrameColumn("Calls", _count),
        "total_device_ns": _FrameColumn("Device", _device_time),
        "share": _FrameColumn("of device sum", _of_device_sum),
        "self_device_ns": _FrameColumn("its own", _device_time, optional=True),
        "total_cpu_ns": _FrameColumn("CPU", _time),
        "self_cpu_ns": _FrameColumn("its own", _time, optional=True),
    },
}
_SHARE_OF = {
    By.KERNEL: "total_ns",
    By.GAP: "duration_ns",
    By.STREAM: "sum_ns",
    By.GRAPH: "total_ns",
    By.BACKWARD: "backward_device_ns",
    By.ITERATION: "device_sum_ns",
    By.CRITICAL: "on_path_ns",
    By.CHAIN: "total_ns",
    By.TREE: "total_device_ns",
}  # the column whose share is shown, if it is not the self device time


def rows_by(analysis: Analysis, by: By, sort: str | None = None) -> pl.DataFrame:
    """Return the rows of a table with all their figures, the most expensive first (steps and streams in order).

    Args:
        analysis: of one trace.
        by: what a row stands for.
        sort: the name or heading of a column to sort by, numbers descending, text ascending; None keeps the order.

    Raises:
        UsageError: the trace does not record what the rows need, or there is no such column.
    """
    table = _table(analysis, by)
    if sort is None:
        return table
    name = _column_named(sort, by, table)
    return table.sort(name, descending=table.schema[name].is_numeric(), nulls_last=True, maintain_order=True)


def _column_named(text: str, by: By, table: pl.DataFrame) -> str:
    """Return the column with a name or a heading, ignoring the heading's case.

    Raises:
        UsageError: there is no such column.
    """
    if text in table.columns:
        return text
    headings = {column.heading.casefold(): name for name, column in _COLUMNS[by].items()}
    name = headings.get(text.casefold())
    # The share is shown and not stored: sorting by it is sorting by the figure that it is a share of.
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
        By.CRITICAL: lambda: analysis.critical_operators,
        By.QUEUE: lambda: _queues(analysis, over_time=False),
        By.QUEUE_OVER_TIME: lambda: _queues(analysis, over_time=True),
        By.CHAIN: lambda: analysis.sequences,
        By.TREE: lambda: _tree(analysis),
    }
    return tables[by]()


def _queues(analysis: Analysis, *, over_time: bool) -> pl.DataFrame:
    from opscope.analysis.structure.streams import queue_by_kernel, queue_over_time  # few tables need it

    return (queue_over_time if over_time else queue_by_kernel)(analysis.trace, analysis.links)


def _tree(analysis: Analysis) -> pl.DataFrame:
    from opscope.analysis.pictures.flame import tree_table  # no other table needs the pictures

    return tree_table(analysis.trace, analysis.links, analysis.origins, analysis.backward_pass)


def _modules(analysis: Analysis) -> pl.DataFrame:
    if analysis.modules is None:
        raise UsageError("the trace records no modules: capture it with Python stacks (opscope profile --with-stack)")
    return analysis.modules


def table_by(analysis: Analysis, by: By, *, sort: str | None, top: int | None, short_names: bool = False) -> Table:
    """Build the table for people.

    Args:
        analysis: of one trace.
        by: what a row stands for.
        sort: as for `rows_by`.
        top: the number of rows; None for all.
        short_names: whether to shorten kernels' names to what they mean.

    Raises:
        UsageError: as `rows_by`.
    """
    rows = rows_by(analysis, by, sort)
    columns = _COLUMNS[by]
    weight = weight_of(by)

    short: Mapping[str, str] = {}
    if short_names and by in _KERNEL_NAMES:
        short = kept(analysis.kernels, "short names", lambda: in_short(analysis.kernels["name"].cast(pl.String)))

    def column_of(key: str, column: _FrameColumn) -> Column[Mapping[str, Any]]:
        def text(row: Mapping[str, Any]) -> str:
            if short_names and key == "name" and by in _KERNEL_NAMES:
                return Name(short.get(row["name"]) or short_name(row["name"]))
            return column.text(row.get(weight if key == "share" else key), analysis)

        return Column(column.heading, text, numeric=column.numeric, optional=column.optional)

    shown = rows.head(rows.height if top is None else top).iter_rows(named=True)
    return table_of([column_of(key, column) for key, column in columns.items()], shown)


_KERNEL_NAMES = (By.KERNEL, By.GRAPH)  # tables whose names are those of kernels


def values_by(analyses: Mapping[str, Analysis], by: By, *, sort: str | None, top: int | None) -> Table:
    """Build the table for programs: exact figures of every trace, empty if unknown.

    Args:
        analyses: at least one analysis, by the trace's name.
        by: what a row stands for.
        sort: as for `rows_by`.
        top: the number of rows of each trace; None for all.

    Raises:
        UsageError: as `rows_by`.
    """
    tables = {trace: rows_by(analysis, by, sort) for trace, analysis in analyses.items()}
    rows = (
        (trace, *("" if value is None else str(value) for value in values))
        for trace, table in tables.items()
        for values in table.head(table.height if top is None else top).iter_rows()
    )
    return Table(("trace", *next(iter(tables.values())).columns), tuple(rows))
