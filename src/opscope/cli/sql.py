"""``opscope sql QUERY INPUT...``: SQL over the tables of one or many traces."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import polars as pl

from opscope.analysis.analyzed import Analysis, analyze
from opscope.cli.inputs import input_option, traces_of
from opscope.cli.options import format_option
from opscope.errors import UsageError
from opscope.model import Trace
from opscope.readers.tables import SCHEMAS
from opscope.record.codec import encode
from opscope.report.blocks import Name, Table
from opscope.report.tables import as_csv, as_markdown, as_text

# Tables of an analysis beside those of the trace itself.
_COMPUTED: Mapping[str, Callable[[Analysis], pl.DataFrame]] = {
    "operator_costs": lambda analysis: analysis.operators,
    "shape_costs": lambda analysis: analysis.shapes,
    "kernel_costs": lambda analysis: analysis.kernels.with_columns(pl.col("name", "kind").cast(pl.String)),
    "category_costs": lambda analysis: analysis.categories,
    "streams": lambda analysis: analysis.streams,
    "graph_nodes": lambda analysis: analysis.graph_nodes,
    "backward_costs": lambda analysis: analysis.backward,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The answer to a query: the schema ``opscope.sql/1``."""

    schema: Literal["opscope.sql/1"] = "opscope.sql/1"
    query: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


_HELP = f"""Run a SQL query over traces, converted traces and run directories.

Every table has the column "trace". Tables of the records: {", ".join(SCHEMAS)}. Tables of what they cost:
{", ".join(_COMPUTED)}. Times are nanoseconds; columns are named as in docs/metrics.md and the schemas.

\b
Example:
  opscope sql "select trace, sum(total_ns) / 1e6 as ms from kernel_costs group by trace" runs/*/
"""


@click.command(help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("query")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@input_option
@format_option
def command(query: str, inputs: tuple[Path, ...], max_input: int, output_format: str) -> None:
    """Run a query; see ``_HELP``."""
    if not re.match(r"\s*(select|with)\b", query, re.IGNORECASE):
        raise UsageError("only queries can be run: they begin with SELECT or WITH")
    wanted = [name for name in (*SCHEMAS, *_COMPUTED) if re.search(rf"\b{name}\b", query, re.IGNORECASE)]
    if not wanted:
        raise UsageError(f"the query names no table; there are {', '.join((*SCHEMAS, *_COMPUTED))}")
    parts: dict[str, list[pl.DataFrame]] = {name: [] for name in wanted}
    for file, trace in traces_of(inputs, max_input):
        for name, frame in _frames(trace, wanted).items():
            # Differences of unsigned counts would wrap around.
            signed = frame.with_columns(pl.col(pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64).cast(pl.Int64))
            parts[name].append(signed.select(pl.lit(str(file)).alias("trace"), pl.all()))
    result = _run(query, {name: pl.concat(frames) for name, frames in parts.items()})
    if output_format == "json":
        click.echo(encode(QueryResult(query=query, columns=tuple(result.columns), rows=tuple(result.rows()))), nl=False)
    elif output_format == "md":
        click.echo(as_markdown(_table(result), "Result"))
    else:
        click.echo(as_csv(_table(result)) if output_format == "csv" else as_text(_table(result)))


def _table(result: pl.DataFrame) -> Table:
    rows = tuple(tuple("" if value is None else Name(value) for value in row) for row in result.iter_rows())
    numeric = frozenset(i for i, dtype in enumerate(result.dtypes) if dtype.is_numeric())
    return Table(tuple(result.columns), rows, numeric)


def _frames(trace: Trace, wanted: list[str]) -> dict[str, pl.DataFrame]:
    as_strings = pl.col(pl.Categorical).cast(pl.String)
    frames = {name: getattr(trace, name).with_columns(as_strings) for name in wanted if name in SCHEMAS}
    computed = [name for name in wanted if name in _COMPUTED]
    if computed:
        analysis = analyze(trace)
        frames |= {name: _COMPUTED[name](analysis) for name in computed}
    return frames


def _run(query: str, frames: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    try:
        result: pl.DataFrame = pl.SQLContext(dict(frames), eager=True).execute(query)
        return result
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"the query cannot be run: {' '.join(str(error).split())}") from error
